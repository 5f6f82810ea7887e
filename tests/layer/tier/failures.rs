//! Behaviour while the source is slow, broken or unavailable.

use std::{convert::Infallible, time::Duration};

use futures_util::future::join_all;
use tower_quota::tier::TierLayer;

use super::support::{MILLISECOND, Mood, SECOND, Scene, UserId, request, settle};

/// All ways in which a source does not answer, at once or ever.
const FAILURES: [Mood; 3] = [Mood::Fails, Mood::Hangs, Mood::Panics];

#[tokio::test(start_paused = true)]
async fn when_one_request_has_waited_in_vain_those_that_wait_with_it_go_on_too() {
    let scene = Scene::new();
    scene.source.mood(Mood::Hangs);
    let mut first = tokio_test::task::spawn(scene.timed_request(1));
    assert!(first.poll().is_pending());
    scene.time.pass(600 * MILLISECOND).await;
    let second = scene.timed_request(1);
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.1, second.1), (SECOND, 400 * MILLISECOND));
}

#[tokio::test(start_paused = true)]
async fn with_a_stale_answer_a_request_waits_for_the_renewal_deadline_only() {
    let scene = Scene::new();
    scene.source.set(1, "premium");
    scene.request(1).await;
    scene.source.mood(Mood::Hangs);
    scene.time.pass(60 * SECOND).await;
    let premium = || Some("premium".to_owned());
    assert_eq!(scene.timed_request(1).await, (premium(), 50 * MILLISECOND));
    assert_eq!(scene.timed_request(1).await, (premium(), Duration::ZERO));
}

/// A request has already waited for this lookup, but that request could use a stale tier.
#[tokio::test(start_paused = true)]
async fn after_a_forgotten_answer_a_request_waits_for_as_long_as_that_of_a_new_user() {
    let scene = Scene::new();
    scene.source.set(1, "free");
    scene.request(1).await;
    scene.time.pass(60 * SECOND).await;
    scene.source.mood(Mood::AnswersAfter(300 * MILLISECOND));
    assert_eq!(scene.timed_request(1).await.1, 50 * MILLISECOND);
    scene.source.set(1, "premium");
    scene.layer.cache().forget(&UserId(1));
    let (tier, waited) = scene.timed_request(1).await;
    // The rest of the started lookup, and then its whole repetition.
    assert_eq!((tier.as_deref(), waited), (Some("premium"), 550 * MILLISECOND));
}

#[tokio::test(start_paused = true)]
async fn while_the_source_fails_the_last_answer_is_used_but_not_for_ever() {
    for mood in FAILURES {
        let scene = Scene::new();
        scene.source.set(1, "premium");
        scene.request(1).await;
        scene.source.mood(mood);
        // 60 seconds fresh and 10 minutes stale. Requests may wait during this time.
        while scene.time.now() < 659 * SECOND {
            scene.time.pass(SECOND).await;
            assert_eq!(scene.request(1).await.as_deref(), Some("premium"), "{mood:?}");
        }
        scene.time.pass(660 * SECOND - scene.time.now()).await;
        assert_eq!(scene.request(1).await, None, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_a_user_is_left_alone_for_a_pause_that_doubles_eight_fold_at_most() {
    let scene = Scene::new();
    scene.source.mood(Mood::Fails);
    scene.request(1).await;
    for (failures, pause) in [1, 2, 4, 8, 8, 8].into_iter().enumerate() {
        scene.time.pass(pause * SECOND - MILLISECOND).await;
        for _ in 0..10 {
            scene.request(1).await;
        }
        assert_eq!(scene.source.asked(), failures + 1, "{pause} s");
        scene.time.pass(MILLISECOND).await;
        scene.request(1).await;
        assert_eq!(scene.source.asked(), failures + 2, "{pause} s");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_success_the_pauses_are_short_again() {
    let scene = Scene::new();
    for pause in [1, 2, 4] {
        scene.source.mood(Mood::Fails);
        scene.request(1).await;
        scene.time.pass(pause * SECOND).await;
    }
    scene.source.mood(Mood::Answers);
    scene.request(1).await;
    scene.time.pass(60 * SECOND).await;
    scene.source.mood(Mood::Fails);
    scene.request(1).await;
    assert_eq!(scene.source.asked(), 5);
    scene.time.pass(SECOND).await;
    scene.request(1).await;
    assert_eq!(scene.source.asked(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_resolver_is_a_failure_and_breaks_nothing() {
    let layer = TierLayer::by_extension(|UserId(user): UserId| {
        // Not in the future but in what makes it.
        assert!(user != 1, "the resolver of a test panics");
        async move { Ok::<_, Infallible>(Some("premium")) }
    });
    let layer = layer.max_look_ups(1).build().unwrap();
    for _ in 0..3 {
        assert_eq!(request(&layer, 1).await, None);
    }
    assert_eq!(request(&layer, 2).await.as_deref(), Some("premium"));
}

#[tokio::test(start_paused = true)]
async fn a_user_whose_look_ups_panic_gets_a_tier_when_they_do_not_any_more() {
    let scene = Scene::with(|builder| builder.max_look_ups(1));
    scene.source.set(1, "premium");
    scene.source.mood(Mood::Panics);
    for _ in 0..5 {
        scene.request(1).await;
        scene.request(1).await;
        scene.time.pass(10 * SECOND).await;
    }
    let look_ups = (scene.source.asked(), scene.source.running());
    assert_eq!(look_ups, (5, 0), "a panic is followed by a pause");
    scene.source.mood(Mood::Answers);
    assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
}

#[tokio::test(start_paused = true)]
async fn look_ups_that_never_end_are_cancelled_and_are_never_more_than_their_places() {
    let scene = Scene::with(|builder| builder.max_look_ups(3));
    scene.source.mood(Mood::Hangs);
    let requests = join_all((0..100).map(|user| scene.timed_request(user))).await;
    assert_eq!(requests, vec![(None, SECOND); 100]);
    assert_eq!((scene.source.asked(), scene.source.running()), (3, 3));

    scene.time.pass(9 * SECOND - MILLISECOND).await;
    assert_eq!(scene.source.running(), 3);
    scene.time.pass(MILLISECOND).await;
    assert_eq!(scene.source.running(), 0);
    scene.source.set(50, "premium");
    scene.source.mood(Mood::Answers);
    assert_eq!(scene.request(50).await.as_deref(), Some("premium"));
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_place_for_a_look_up_the_last_answer_is_used() {
    let scene = Scene::with(|builder| builder.max_look_ups(1));
    scene.source.set(1, "premium");
    scene.request(1).await;
    scene.time.pass(60 * SECOND).await;
    scene.source.mood(Mood::Hangs);
    scene.request(2).await;
    let (tier, waited) = scene.timed_request(1).await;
    assert_eq!((tier.as_deref(), waited), (Some("premium"), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_is_a_failure() {
    let layer = TierLayer::by_extension(async |UserId(user): UserId| {
        let length = usize::try_from(user).unwrap();
        Ok::<_, Infallible>(Some("x".repeat(length)))
    });
    let layer = layer.build().unwrap();
    assert_eq!(request(&layer, 256).await.unwrap().len(), 256);
    assert_eq!(request(&layer, 257).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_was_outrun_by_its_time_to_live_gives_a_stale_answer_and_not_none() {
    let scene = Scene::with(|builder| builder.time_to_live(MILLISECOND));
    scene.source.set(1, "premium");
    scene.source.mood(Mood::AnswersAfter(20 * MILLISECOND));
    assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
    scene.source.mood(Mood::Fails);
    assert_eq!(scene.request(1).await.as_deref(), Some("premium"));
    settle().await;
}
