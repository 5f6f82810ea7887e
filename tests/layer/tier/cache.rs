//! The look-ups, and their moments.

use std::{convert::Infallible, future::pending, time::Duration};

use http::Request;
use tower_quota::{
    ResolvedTier,
    tier::{OnUnknownTier, TierLayer},
};

use super::support::{MILLISECOND, Mood, SECOND, Scene, UserId, request, settle, tier_of_request};

#[tokio::test(start_paused = true)]
async fn a_tier_that_somebody_else_has_named_stays_if_the_source_names_none() {
    let scene = Scene::new();
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(UserId(1));
    request.extensions_mut().insert(ResolvedTier::new("partner"));
    assert_eq!(tier_of_request(&scene.layer, request).await.as_deref(), Some("partner"));
}

/// L12
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
    assert_eq!(scene.layer.cache().users(), 100);
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
    let alice = tier_of_request(&layer, request("alice")).await;
    assert_eq!(alice.as_deref(), Some("premium"));
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
