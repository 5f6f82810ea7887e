//! Together with the layer that limits: what clients of a service see.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt};
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key};

use super::support::{Mood, SECOND, Scene, UserId};

type TextBody = Full<Bytes>;

/// A service with limits by plan, of which a database knows.
struct Limited {
    scene: Scene,
    limits: RateLimitLayer,
}

impl Limited {
    fn new() -> Self {
        let scene = Scene::new();
        let store = MemoryStore::builder().clock(scene.time.clock.clone()).build().unwrap();
        let tiers = Tiers::resolved()
            .tier("free", [QuotaPolicy::per_minute("minute", 100)])
            .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)])
            .unlimited("admin");
        let limits = RateLimitLayer::builder(store)
            .scope("api")
            .key(key::extension::<UserId>())
            .tiers(tiers)
            .build()
            .unwrap();
        for (user, plan) in [(1, "free"), (2, "premium"), (3, "admin"), (4, "gold")] {
            scene.source.set(user, plan);
        }
        Self { scene, limits }
    }

    /// The fields about limits in a response to the user.
    async fn fields(&self, user: u64) -> Option<String> {
        self.scene.time.sync();
        let service = ServiceBuilder::new()
            .layer(self.scene.layer.clone())
            .layer(self.limits.clone())
            .service_fn(async |_: Request<TextBody>| Ok::<_, Infallible>(Response::new(TextBody::default())));
        let request = Request::builder().extension(UserId(user)).body(TextBody::default());
        let response = service.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        let field = |name| response.headers().get(name)?.to_str().ok();
        Some(format!("{} {}", field("ratelimit-policy")?, field("ratelimit")?))
    }
}

/// L5
#[tokio::test(start_paused = true)]
async fn users_have_the_limits_of_the_plan_that_the_database_names() {
    let service = Limited::new();
    assert_eq!(
        service.fields(1).await.unwrap(),
        r#""minute";q=100;w=60 "minute";r=99;t=60"#
    );
    assert_eq!(
        service.fields(2).await.unwrap(),
        r#""minute";q=1000;w=60 "minute";r=999;t=60"#
    );
    assert_eq!(service.fields(3).await, None);
}

#[tokio::test(start_paused = true)]
async fn users_without_a_plan_or_with_one_that_has_no_limits_here_are_of_the_first_tier() {
    let service = Limited::new();
    for user in [4, 5] {
        assert_eq!(
            service.fields(user).await.unwrap(),
            r#""minute";q=100;w=60 "minute";r=99;t=60"#
        );
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_database_is_down_new_users_are_of_the_first_tier_and_known_ones_keep_theirs() {
    for mood in [Mood::Fails, Mood::Hangs, Mood::Panics] {
        let service = Limited::new();
        service.fields(2).await;
        service.scene.source.mood(mood);
        service.scene.time.pass(100 * SECOND).await;
        let known = service.fields(2).await.unwrap();
        assert_eq!(known, r#""minute";q=1000;w=60 "minute";r=999;t=60"#, "{mood:?}");
        service.scene.source.set(6, "premium");
        let new = service.fields(6).await.unwrap();
        assert_eq!(new, r#""minute";q=100;w=60 "minute";r=99;t=60"#, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_is_seen_after_the_time_to_live_or_as_soon_as_the_user_is_forgotten() {
    let service = Limited::new();
    let is_premium = async |user| service.fields(user).await.unwrap().contains("q=1000;");
    service.scene.source.set(7, "free");
    for user in [1, 7] {
        assert!(!is_premium(user).await);
        service.scene.source.set(user, "premium");
        assert!(!is_premium(user).await);
    }
    service.scene.layer.cache().forget(&UserId(7));
    assert!(is_premium(7).await);
    assert!(!is_premium(1).await);
    service.scene.time.pass(60 * SECOND).await;
    assert!(is_premium(1).await);
}
