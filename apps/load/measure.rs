//! One measurement: a warm-up, then alternately the bare service and the service with limits, with statistics of Redis.

use std::{array, convert::Infallible, error::Error, time::Duration};

use http::{Request, Response};
use tower::Service;

use super::{
    Found, Test,
    difference::Difference,
    generator::Load,
    instances::{INSTANCES, bare, limited},
    options::Options,
    report::Report,
    server::{self, Figures, Spent},
    tally::Tally,
    undecided::Undecided,
};

const ROUNDS: u64 = 7;

/// The length of a slice of the load.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct Measured {
    pub(crate) rounds: Vec<Round>,
    /// The total of all rounds.
    pub(crate) bare: Run,
    pub(crate) limited: Run,
    /// Statistics before the first request.
    pub(crate) empty: Figures,
    /// The load of Redis for the requests with limits.
    pub(crate) spent: Spent,
    pub(crate) after: Figures,
    /// The mean size, and the number of sampled keys.
    pub(crate) bytes_per_key: (f64, usize),
    /// The additional bytes of the test's key prefix.
    pub(crate) extra_key_bytes: usize,
    pub(crate) undecided: Undecided,
}

pub(crate) struct Round {
    pub(crate) bare: Run,
    pub(crate) limited: Run,
}

impl Measured {
    /// The increase of a figure due to the limits, from all rounds.
    pub(crate) fn added(&self, figure: impl Fn(&Run) -> f64) -> Difference {
        Difference::added(
            self.rounds
                .iter()
                .map(|round| (figure(&round.bare), figure(&round.limited))),
        )
    }

    pub(crate) fn live_keys(&self) -> u64 {
        self.after.keys.saturating_sub(self.empty.keys)
    }

    /// Rejections without a Redis call.
    pub(crate) fn local_rejections(&self) -> u64 {
        let decided = self.limited.tally.decided();
        decided
            .saturating_sub(self.spent.script_calls)
            .min(self.limited.tally.rejected.count())
    }

    /// The CPU time of Redis per decision.
    pub(crate) fn redis_micros(&self) -> f64 {
        self.per_decision(self.spent.processor_seconds * 1e6)
    }

    pub(crate) fn per_decision(&self, total: f64) -> f64 {
        total / self.limited.tally.decided().max(1) as f64
    }
}

/// A completed load on the four instances.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) tally: Tally,
    /// The number of due requests.
    pub(crate) due: u64,
    /// Requests with a response before the end of the load. The tally includes these requests.
    pub(crate) in_time: u64,
    /// The CPU time of this process, if the system reports it.
    pub(crate) processor_seconds: Option<f64>,
}

impl Run {
    fn sum<'a>(runs: impl Iterator<Item = &'a Self>) -> Self {
        let nothing = Self {
            tally: Tally::new(),
            due: 0,
            in_time: 0,
            processor_seconds: Some(0.0),
        };
        runs.fold(nothing, |mut sum, run| {
            sum.tally.add(&run.tally);
            Self {
                tally: sum.tally,
                due: sum.due + run.due,
                in_time: sum.in_time + run.in_time,
                processor_seconds: sum
                    .processor_seconds
                    .zip(run.processor_seconds)
                    .map(|(sum, run)| sum + run),
            }
        })
    }

    /// In milliseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        self.tally.latencies().percentile(percent).as_secs_f64() * 1_000.0
    }

    /// The CPU time per request, including the generator.
    pub(crate) fn micros_per_request(&self) -> Option<f64> {
        let requests = self.tally.answered().max(1);
        self.processor_seconds.map(|busy| busy * 1e6 / requests as f64)
    }
}

/// Returns the seconds per side and round: one round per second, but at most seven.
pub(crate) fn rounds(seconds: u64) -> Vec<[u64; 2]> {
    let rounds = seconds.min(ROUNDS);
    let length = |round| seconds * (round + 1) / rounds - seconds * round / rounds;
    (0..rounds).map(|round| [length(round); 2]).collect()
}

pub(crate) fn run(test: &mut Test<'_>) -> Result<Found, Box<dyn Error>> {
    let options = test.options;
    let rounds = rounds(options.seconds);
    test.expected = SECOND * (2 * options.seconds + 1) as u32;
    let measured = &measure(test, options, &rounds)?;
    let report = Report { options, measured };
    Ok(Found {
        text: report.to_string(),
        json: report.json(),
    })
}

/// Measures both sides in each round for the given seconds.
pub(crate) fn measure(
    test: &mut Test<'_>,
    options: &Options,
    lengths: &[[u64; 2]],
) -> Result<Measured, Box<dyn Error>> {
    let of = |seconds| Options {
        seconds,
        ..options.clone()
    };
    let empty = test.server.figures()?;
    let services = limited(test, options)?;
    run_load(test, services.clone(), &of(1), "warm-up", lengths.len() as u64);
    let (mut rounds, mut spent) = (Vec::new(), Spent::default());
    for (number, [without, with]) in (0..).zip(lengths) {
        let of_rounds = |what: &str| format!("round {} of {}, {what}", number + 1, lengths.len());
        let bare = |test: &mut Test<'_>| {
            let services = array::from_fn(|_| bare());
            run_load(test, services, &of(*without), &of_rounds("bare service"), number)
        };
        let mut limited = |test: &mut Test<'_>| {
            let before = test.server.figures()?;
            let what = of_rounds(options.mode.name());
            let run = run_load(test, services.clone(), &of(*with), &what, number);
            spent.add(&before, &test.server.figures()?);
            Ok::<_, Box<dyn Error>>(run)
        };
        // The two sides alternate in running first. In the last round, the side with limits runs last, because its keys
        // are examined afterwards.
        let is_bare_first = (lengths.len() as u64 - number) % 2 == 1;
        let first = is_bare_first.then(|| bare(test));
        let limited = limited(test)?;
        let bare = first.unwrap_or_else(|| bare(test));
        rounds.push(Round { bare, limited });
    }
    Ok(Measured {
        bare: Run::sum(rounds.iter().map(|round| &round.bare)),
        limited: Run::sum(rounds.iter().map(|round| &round.limited)),
        rounds,
        empty,
        spent,
        after: test.server.figures()?,
        bytes_per_key: test.server.bytes_per_key()?,
        extra_key_bytes: test.server.extra_key_bytes(),
        undecided: test.undecided.clone(),
    })
}

fn run_load<S, B>(test: &mut Test<'_>, services: [S; INSTANCES], options: &Options, what: &str, round: u64) -> Run
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let begin = server::own_processor_seconds();
    let mut load = Load::start(test.runtime, services, options, round);
    let until = Duration::from_secs(options.seconds);
    let mut tally = load.watch(until, SECOND, |slice| test.show(what, slice));
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
