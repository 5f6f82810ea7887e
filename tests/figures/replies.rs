//! Replies that are lost while their connection stays.

use std::time::{Duration, Instant};

use tokio::{runtime::Runtime, time::sleep};

use super::{harness::Scene, load::Load, support::Mode, table::Table};

const ROUNDS: u32 = 6;
const LONGEST: Duration = Duration::from_millis(500);

pub fn measure(runtime: &Runtime, table: &mut Table) {
    let wanted = "nobody is answered with another caller's decision; healed within 0.5 s";
    table.run(runtime, "replies lost for 50 ms, under load", wanted, async {
        healing(async |scene| {
            scene.set_mode(Mode::SwallowReplies);
            sleep(Duration::from_millis(50)).await;
            scene.set_mode(Mode::Forward);
        })
        .await
    });
    table.run(runtime, "a few bytes of replies lost, under load", wanted, async {
        healing(async |scene| {
            for proxy in &scene.proxies {
                proxy.lose_replies(41);
            }
        })
        .await
    });
}

/// The longest time after a loss in which a request passed uncounted. The scene checks its history itself.
async fn healing(lose: impl AsyncFn(&Scene)) -> (String, bool) {
    let scene = Scene::start().await;
    let load = Load::start(&scene.clients);
    let (mut longest, mut uncounted) = (Duration::ZERO, 0);
    for _ in 0..ROUNDS {
        sleep(Duration::from_millis(500)).await;
        scene.record.take_totals();
        lose(&scene).await;
        let lost = Instant::now();
        sleep(Duration::from_millis(1_500)).await;
        let counts = scene.record.take_totals().counts;
        uncounted += counts.undecided + counts.unasked;
        let last = scene.record.last_uncounted().unwrap_or(lost);
        longest = longest.max(last.saturating_duration_since(lost));
        scene.close_chapter(0).await;
    }
    load.stop().await;
    let text = format!(
        "healed within {:.2} s, {uncounted} uncounted in {ROUNDS} losses",
        longest.as_secs_f64()
    );
    (text, longest <= LONGEST)
}
