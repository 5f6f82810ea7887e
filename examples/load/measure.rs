//! One measurement: the bare service, a warm-up, then what counts, with what Redis says before and after.

use std::{array, convert::Infallible, error::Error, time::Duration};

use http::{Request, Response};
use tower::Service;

use super::{
    Test,
    generator::Load,
    instances::{INSTANCES, bare, limited},
    options::Options,
    report::Report,
    server::{self, Figures},
    tally::Tally,
    undecided::Undecided,
};

pub(crate) struct Measured {
    pub(crate) bare: Run,
    pub(crate) limited: Run,
    /// Redis before the first request.
    pub(crate) empty: Figures,
    /// Redis after the warm-up.
    pub(crate) before: Figures,
    pub(crate) after: Figures,
    /// Bytes, and of how many keys.
    pub(crate) bytes_per_key: (f64, usize),
    /// The part of these bytes that the test's own key prefix takes.
    pub(crate) extra_key_bytes: usize,
    pub(crate) undecided: Undecided,
}

impl Measured {
    pub(crate) fn live_keys(&self) -> u64 {
        self.after.keys.saturating_sub(self.empty.keys)
    }

    pub(crate) fn script_calls(&self) -> u64 {
        self.after.script_calls.saturating_sub(self.before.script_calls)
    }

    /// Rejections that Redis was not asked for.
    pub(crate) fn local_rejections(&self) -> u64 {
        let decided = self.limited.tally.decided();
        decided
            .saturating_sub(self.script_calls())
            .min(self.limited.tally.rejected.count())
    }

    /// The processor time of Redis for a decision.
    pub(crate) fn redis_micros(&self) -> f64 {
        self.per_decision((self.after.processor_seconds - self.before.processor_seconds) * 1e6)
    }

    pub(crate) fn per_decision(&self, total: f64) -> f64 {
        total / self.limited.tally.decided().max(1) as f64
    }
}

/// Load on the four instances, from its beginning to its end.
pub(crate) struct Run {
    pub(crate) tally: Tally,
    /// Requests.
    pub(crate) due: u64,
    /// The ones that were answered before the time was over; these are also in the tally.
    pub(crate) in_time: u64,
    /// The processor time of this process, if the system tells it.
    pub(crate) processor_seconds: Option<f64>,
}

impl Run {
    /// The processor time for a request, the generator included.
    pub(crate) fn micros_per_request(&self) -> Option<f64> {
        let requests = self.tally.answered().max(1);
        self.processor_seconds.map(|busy| busy * 1e6 / requests as f64)
    }
}

pub(crate) fn run(test: &mut Test<'_>) -> Result<(), Box<dyn Error>> {
    let (options, measured) = (test.options, measure(test, test.options)?);
    print!(
        "{}",
        Report {
            options,
            measured: &measured
        }
    );
    Ok(())
}

pub(crate) fn measure(test: &mut Test<'_>, options: &Options) -> Result<Measured, Box<dyn Error>> {
    let empty = test.server.figures()?;
    let second = Options {
        seconds: 1,
        ..options.clone()
    };
    let bare = run_load(test, array::from_fn(|_| bare()), &second, "bare service");
    let services = limited(test, options)?;
    run_load(test, services.clone(), &second, "warm-up");
    let before = test.server.figures()?;
    let limited = run_load(test, services, options, options.mode.name());
    test.progress.clear();
    Ok(Measured {
        bare,
        limited,
        empty,
        before,
        after: test.server.figures()?,
        bytes_per_key: test.server.bytes_per_key()?,
        extra_key_bytes: test.server.extra_key_bytes(),
        undecided: test.undecided.clone(),
    })
}

fn run_load<S, B>(test: &mut Test<'_>, services: [S; INSTANCES], options: &Options, what: &str) -> Run
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let begin = server::own_processor_seconds();
    let mut load = Load::start(test.runtime, services, options);
    let mut tally = load.watch(Duration::from_secs(options.seconds), &mut test.progress, what);
    let in_time = tally.answered();
    let (due, late) = load.finish();
    tally.add(&late);
    let end = server::own_processor_seconds();
    Run {
        tally,
        due,
        in_time,
        processor_seconds: begin.zip(end).map(|(begin, end)| end - begin),
    }
}
