//! The look-ups, and their moments.

use std::{convert::Infallible, future::pending, time::Duration};

use futures_util::future::join_all;
use http::Request;
use tower_quota::{
    ResolvedTier,
    tier::{OnUnknownTier, TierLayer},
};

use super::support::{MILLISECOND, Mood, SECOND, Scene, UserId, request, settle, tier_of_request};

/// L12
#[tokio::test(start_paused = true)]
async fn an_answer_is_used_for_its_time_to_live_without_asking_again() {
    let scene = Scene::new();
    scene.source.set(1, "premium");
    for _ in 0..45 {
        assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
        scene.time.pass(SECOND).await;
    }
    assert_eq!(scene.source.asked(), 1);
    assert_eq!(scene.layer.cache().users(), 1);
}

#[tokio::test(start_paused = true)]
async fn that_a_user_has_no_tier_is_cached_too() {
    let scene = Scene::new();
    for _ in 0..10 {
        assert_eq!(scene.request(1).await, None);
    }
    assert_eq!(scene.source.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_user_ask_nobody_and_keep_nothing() {
    let scene = Scene::new();
    assert_eq!(tier_of_request(&scene.layer, Request::new(String::new())).await, None);
    assert_eq!((scene.source.asked(), scene.layer.cache().users()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tier_that_somebody_else_has_named_stays_if_the_source_names_none() {
    let scene = Scene::new();
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(UserId(1));
    request.extensions_mut().insert(ResolvedTier::new("partner"));
    assert_eq!(tier_of_request(&scene.layer, request).await.as_deref(), Some("partner"));
}

#[tokio::test(start_paused = true)]
async fn all_requests_of_a_user_share_one_look_up() {
    let scene = Scene::new();
    scene.source.set(1, "premium");
    scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
    let tiers = join_all((0..100).map(|_| scene.request(1))).await;
    assert!(tiers.iter().all(|tier| tier.as_deref() == Some("premium")));
    assert_eq!(scene.source.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn users_are_looked_up_at_the_same_time_and_get_tiers_of_their_own() {
    let scene = Scene::new();
    scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
    for user in 0..10 {
        scene.source.set(user, &format!("tier {user}"));
    }
    let start = scene.time.now();
    let tiers = join_all((0..10).map(|user| scene.request(user))).await;
    for (user, tier) in tiers.into_iter().enumerate() {
        assert_eq!(tier.unwrap(), format!("tier {user}"));
    }
    assert_eq!(scene.time.now() - start, 20 * MILLISECOND);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_goes_on_when_the_request_that_began_it_is_cancelled() {
    let scene = Scene::new();
    scene.source.set(1, "premium");
    scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
    let mut first = tokio_test::task::spawn(scene.request(1));
    assert!(first.poll().is_pending());
    let mut second = tokio_test::task::spawn(scene.request(1));
    assert!(second.poll().is_pending());
    drop(first);
    assert_eq!(second.await.as_deref(), Some("premium"));
    assert_eq!(scene.source.asked(), 1);

    let mut alone = tokio_test::task::spawn(scene.request(2));
    assert!(alone.poll().is_pending());
    drop(alone);
    scene.time.pass(20 * MILLISECOND).await;
    assert_eq!(scene.source.asked(), 2);
    assert_eq!(scene.timed_request(2).await.1, Duration::ZERO);
    assert_eq!(scene.source.asked(), 2, "what it has found is remembered");
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_is_not_used_if_the_source_gives_a_new_one_in_time() {
    let scene = Scene::new();
    scene.source.set(1, "free");
    scene.request(1).await;
    scene.source.set(1, "premium");
    scene.source.mood(Mood::AnswersAfter(49 * MILLISECOND));
    scene.time.pass(60 * SECOND).await;
    let (tier, waited) = scene.timed_request(1).await;
    assert_eq!(tier.as_deref(), Some("premium"));
    assert_eq!(waited, 49 * MILLISECOND);
}

#[tokio::test(start_paused = true)]
async fn in_the_last_quarter_of_its_time_an_answer_is_renewed_while_nobody_waits() {
    let scene = Scene::new();
    scene.source.set(1, "free");
    scene.request(1).await;
    scene.source.set(1, "premium");
    scene.source.mood(Mood::AnswersAfter(49 * MILLISECOND));

    scene.time.pass(45 * SECOND - MILLISECOND).await;
    scene.request(1).await;
    assert_eq!(scene.source.asked(), 1);

    scene.time.pass(MILLISECOND).await;
    for _ in 0..10 {
        let (tier, waited) = scene.timed_request(1).await;
        assert_eq!((tier.as_deref(), waited), (Some("free"), Duration::ZERO));
    }
    settle().await;
    assert_eq!(scene.source.asked(), 2);
    scene.time.pass(49 * MILLISECOND).await;
    let (tier, waited) = scene.timed_request(1).await;
    assert_eq!((tier.as_deref(), waited), (Some("premium"), Duration::ZERO));
}

/// The source is called when the lookup starts; the result may be outdated from then on.
#[tokio::test(start_paused = true)]
async fn the_age_of_an_answer_counts_from_the_question() {
    let scene = Scene::new();
    scene.source.set(1, "free");
    scene.source.mood(Mood::AnswersAfter(40 * MILLISECOND));
    scene.request(1).await;
    scene.time.pass(60 * SECOND - 50 * MILLISECOND).await;
    scene.source.set(1, "premium");
    let (tier, waited) = scene.timed_request(1).await;
    assert_eq!((tier.as_deref(), waited), (Some("free"), Duration::ZERO), "59.99 s old");
    scene.time.pass(10 * MILLISECOND).await;
    let (tier, waited) = scene.timed_request(1).await;
    assert_eq!(
        (tier.as_deref(), waited),
        (Some("premium"), 30 * MILLISECOND),
        "60 s old"
    );
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_user_is_looked_up_anew_and_others_are_not() {
    let scene = Scene::new();
    for user in [1, 2] {
        scene.source.set(user, "free");
        scene.request(user).await;
        scene.source.set(user, "premium");
    }
    scene.layer.cache().forget(&UserId(1));
    assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
    assert_eq!(scene.request(2).await.as_deref(), Some("free"));
    assert_eq!(scene.source.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn all_users_can_be_forgotten() {
    let scene = Scene::with(|builder| builder.max_users(100_000));
    for user in 0..200 {
        scene.source.set(user, "free");
        scene.request(user).await;
        scene.source.set(user, "premium");
    }
    assert_eq!(scene.layer.cache().users(), 200);
    scene.layer.cache().forget_all();
    assert_eq!(scene.layer.cache().users(), 0);
    for user in 0..200 {
        assert_eq!(scene.request(user).await.as_deref(), Some("premium"));
    }
}

/// The lookup may have read the old plan just before.
#[tokio::test(start_paused = true)]
async fn a_look_up_that_was_under_way_when_its_user_was_forgotten_is_repeated_and_none_runs_beside_it() {
    for all in [false, true] {
        let scene = Scene::new();
        scene.source.set(1, "free");
        scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
        let mut before = tokio_test::task::spawn(scene.request(1));
        assert!(before.poll().is_pending());
        settle().await;
        assert_eq!(scene.source.running(), 1);

        scene.source.set(1, "premium");
        match all {
            true => scene.layer.cache().forget_all(),
            false => scene.layer.cache().forget(&UserId(1)),
        }
        let mut after = tokio_test::task::spawn(scene.request(1));
        assert!(after.poll().is_pending());
        settle().await;
        assert_eq!(scene.source.running(), 1);
        assert_eq!(after.await.as_deref(), Some("premium"));
        assert_eq!(before.await.as_deref(), Some("premium"));
        assert_eq!(scene.source.asked(), 2);
        assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
        assert_eq!(scene.source.asked(), 2);
    }
}

/// The lookup starts after the user was forgotten, so its answer is newer, although it was queued before.
#[tokio::test(start_paused = true)]
async fn a_look_up_that_waits_for_its_place_when_its_user_is_forgotten_is_not_repeated() {
    let scene = Scene::with(|builder| builder.max_look_ups(1));
    scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
    let mut first = tokio_test::task::spawn(scene.request(1));
    let mut second = tokio_test::task::spawn(scene.request(2));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    settle().await;
    assert_eq!((scene.source.asked(), scene.source.running()), (1, 1));
    scene.layer.cache().forget(&UserId(2));
    scene.source.set(2, "premium");
    assert_eq!(second.await.as_deref(), Some("premium"));
    assert_eq!((first.await, scene.source.asked()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn clones_share_what_is_known() {
    let scene = Scene::new();
    scene.source.set(1, "premium");
    let clone = scene.layer.clone();
    scene.request(1).await;
    assert_eq!(request(&clone, 1).await.as_deref(), Some("premium"));
    assert_eq!(scene.source.asked(), 1);
    clone.cache().clone().forget(&UserId(1));
    assert_eq!(scene.layer.cache().users(), 0);
}

/// L14
#[tokio::test(start_paused = true)]
async fn a_flood_of_users_never_exceeds_the_cap() {
    for cap in [1, 7, 1_000, 5_000] {
        let scene = Scene::with(|builder| builder.max_users(cap));
        for user in 0..10_000 {
            scene.request(user).await;
        }
        let users = scene.layer.cache().users();
        assert!((cap / 2..=cap).contains(&users), "{users} of {cap}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_users_throws_out_those_first_who_do_not_call() {
    let scene = Scene::with(|builder| builder.max_users(100));
    for user in 0..1_000 {
        scene.time.pass(MILLISECOND).await;
        scene.request(0).await;
        scene.request(1_000 + user).await;
    }
    assert_eq!(scene.source.asked(), 1_001, "user 0 was never looked up again");
}

/// Each of them calls later than those users, but never again.
#[tokio::test(start_paused = true)]
async fn a_flood_of_users_who_call_once_throws_out_nobody_who_called_twice() {
    let scene = Scene::with(|builder| builder.max_users(100));
    for user in [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] {
        scene.request(user).await;
    }
    for user in 1_000..2_000 {
        scene.time.pass(MILLISECOND).await;
        scene.request(user).await;
    }
    for user in 0..5 {
        scene.request(user).await;
    }
    assert_eq!(scene.source.asked(), 1_005);
}

/// L21
#[tokio::test(start_paused = true)]
async fn answers_that_are_too_old_make_room_for_new_ones() {
    let scene = Scene::new();
    for user in 0..500 {
        scene.request(user).await;
    }
    scene.time.pass(660 * SECOND).await;
    for user in 500..1_000 {
        scene.request(user).await;
    }
    let users = scene.layer.cache().users();
    assert!(users < 600, "{users}");
}

/// A user who is evicted is still not looked up twice at a time.
#[tokio::test(start_paused = true)]
async fn a_user_who_was_thrown_out_during_a_look_up_is_not_looked_up_beside_it() {
    let scene = Scene::with(|builder| builder.max_users(1));
    scene.source.set(1, "free");
    scene.request(1).await;
    scene.time.pass(60 * SECOND).await;
    scene.source.mood(Mood::AnswersAfter(40 * MILLISECOND));
    let mut first = tokio_test::task::spawn(scene.request(1));
    assert!(first.poll().is_pending());
    settle().await;
    scene.source.mood(Mood::Answers);
    scene.request(2).await;
    let mut second = tokio_test::task::spawn(scene.request(1));
    assert!(second.poll().is_pending());
    settle().await;
    assert_eq!(scene.source.running(), 1);
    assert_eq!(second.await.as_deref(), Some("free"));
    assert_eq!(scene.source.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_user_may_be_whatever_a_closure_finds_and_the_tier_any_text() {
    #[derive(Clone, Copy)]
    enum Plan {
        Premium,
    }

    impl AsRef<str> for Plan {
        fn as_ref(&self) -> &str {
            match self {
                Self::Premium => "premium",
            }
        }
    }

    let layer = TierLayer::from_fn(
        |request| request.headers.get("x-user")?.to_str().ok().map(str::to_owned),
        async |user: String| Ok::<_, Infallible>((user == "alice").then_some(Plan::Premium)),
    );
    let layer = layer.build().unwrap();
    let request = |user| Request::builder().header("x-user", user).body(String::new()).unwrap();
    assert_eq!(
        tier_of_request(&layer, request("alice")).await.as_deref(),
        Some("premium")
    );
    assert_eq!(tier_of_request(&layer, request("bob")).await, None);
    assert_eq!(tier_of_request(&layer, Request::new(String::new())).await, None);
    assert_eq!(layer.cache().users(), 2);
}

#[tokio::test]
async fn without_a_runtime_requests_go_on_without_a_tier() {
    let layer = TierLayer::by_extension(|_: UserId| pending::<Result<Option<String>, Infallible>>());
    let layer = layer.build().unwrap();
    let outside = std::thread::spawn(move || tokio_test::task::spawn(request(&layer, 1)).poll());
    assert_eq!(outside.join().unwrap(), std::task::Poll::Ready(None));
}

/// An answer that arrived before the request started to wait was missed.
#[test]
fn an_answer_that_is_there_at_once_is_that_of_the_request_that_asked() {
    const THREADS: u64 = 4;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let layer = TierLayer::by_extension(|_: UserId| async { Ok::<_, Infallible>(Some("premium")) })
        .on_unknown_tier(OnUnknownTier::wait(60 * SECOND))
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            let (layer, runtime) = (&layer, runtime.handle());
            // A lookup from a thread outside the runtime immediately starts on a runtime thread.
            scope.spawn(move || {
                for user in (first..10_000).step_by(THREADS as usize) {
                    let tier = runtime.block_on(request(layer, user));
                    assert_eq!(tier.as_deref(), Some("premium"));
                }
            });
        }
    });
}

/// The lookup's permit is released before its answer is delivered, because the receiver may look up the next user
/// immediately.
#[test]
fn a_look_up_that_has_answered_is_in_nobodys_way() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let layer = TierLayer::by_extension(|_: UserId| async { Ok::<_, Infallible>(Some("premium")) })
        .on_unknown_tier(OnUnknownTier::wait(60 * SECOND))
        .max_look_ups(1)
        .build()
        .unwrap();
    for user in 0..5_000 {
        let tier = runtime.block_on(request(&layer, user));
        assert_eq!(tier.as_deref(), Some("premium"));
    }
}
