//! Replies that are lost while their connection stays.

use std::time::{Duration, Instant};

use test_kit::Mode;
use tokio::{runtime::Runtime, time::sleep};

use super::{harness::Scene, load::Load, table::Table};

const ROUNDS: usize = 6;
const WATCHED: Duration = Duration::from_millis(1_500);
const LONGEST: Duration = Duration::from_millis(500);

/// In this time the load makes a hundred requests and more. Where none of them passed uncounted, the instances have healed.
const PAUSE: Duration = Duration::from_millis(100);

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

/// The uncounted requests after a loss. They follow one another until the instances have healed. A busy machine causes
/// single ones later, so the output also shows the figures of an equally long time without a loss.
async fn healing(lose: impl AsyncFn(&Scene)) -> (String, bool) {
    let scene = Scene::start().await;
    let load = Load::start(&scene.clients);
    let (mut longest, mut uncounted, mut later, mut without) = (Duration::ZERO, 0, 0, 0);
    for _ in 0..ROUNDS {
        scene.record.take_uncounted();
        sleep(WATCHED).await;
        without += scene.record.take_uncounted().len();
        lose(&scene).await;
        let lost = Instant::now();
        sleep(WATCHED).await;
        let moments = scene.record.take_uncounted();
        let (healed, in_a_row) = end_of_row(lost, &moments);
        longest = longest.max(healed.saturating_duration_since(lost));
        uncounted += in_a_row;
        later += moments.len() - in_a_row;
        scene.close_chapter(0).await;
    }
    load.stop().await;
    let text = format!(
        "healed within {:.2} s, {uncounted} uncounted in {ROUNDS} losses; {later} single ones later, {without} in as long \
         without a loss",
        longest.as_secs_f64()
    );
    (text, longest <= LONGEST && later <= 2 * without + ROUNDS)
}

/// The last of the moments that follow the loss and each other without a pause, and their number.
fn end_of_row(lost: Instant, moments: &[Instant]) -> (Instant, usize) {
    let (mut last, mut number) = (lost, 0);
    for moment in moments {
        if moment.saturating_duration_since(last) > PAUSE {
            break;
        }
        (last, number) = (*moment, number + 1);
    }
    (last, number)
}
