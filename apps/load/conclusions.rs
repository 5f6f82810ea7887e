//! Extrapolates the figures to more users, rejections and attacks.

use std::fmt;

use super::{
    difference::Difference,
    instances::INSTANCES,
    measure::Measured,
    options::{Mode, Options},
    report::percent,
    tally::Latencies,
};

/// With fewer keys, connections take more memory than keys.
const ENOUGH_KEYS: u64 = 10_000;

const MANY_USERS: f64 = 10_000_000.0;
const PEAK: f64 = 30_000.0;

pub(crate) struct Conclusions<'a> {
    pub(crate) options: &'a Options,
    pub(crate) measured: &'a Measured,
}

impl fmt::Display for Conclusions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.options.mode {
            Mode::HotKey => self.hot_key(f),
            Mode::Rejection => self.rejections(f),
            _ => self.many_users(f),
        }
    }
}

impl Conclusions<'_> {
    fn many_users(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, source) = self.bytes_per_user();
        writeln!(f, "what that means for 10 million users")?;
        writeln!(
            f,
            "  memory of Redis      10 000 000 x {bytes:.0} bytes ({source}) = {:.2} GB, if all are live at once",
            MANY_USERS * bytes / 1e9
        )?;
        let micros = self.measured.redis_micros();
        writeln!(
            f,
            "  processors of Redis  30 000 decisions a second at peak x {micros:.2} µs = {:.2}; one server has one for scripts",
            PEAK * micros / 1e6
        )?;
        let added = self.measured.added(|run| run.micros_per_request().unwrap_or(f64::NAN));
        match added.measured() {
            Some((micros, noise)) => writeln!(
                f,
                "  all instances        30 000 requests a second at peak x {micros:.2} µs = {:.2} processors for their limits, \
                 noise ±{:.2}",
                PEAK * micros / 1e6,
                PEAK * noise / 1e6
            ),
            None => writeln!(f, "  all instances        {}", added.with_unit("µs a request")),
        }
    }

    /// With enough keys, the result includes the share of each key in the hash tables.
    fn bytes_per_user(&self) -> (f64, &'static str) {
        let Measured {
            empty,
            after,
            bytes_per_key,
            ..
        } = self.measured;
        let keys = self.measured.live_keys();
        if keys < ENOUGH_KEYS {
            return (bytes_per_key.0, "MEMORY USAGE; too few keys to tell what tables take");
        }
        let grown = after.used_memory.saturating_sub(empty.used_memory);
        (grown as f64 / keys as f64, "growth of used memory / live keys")
    }

    fn rejections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rejected = self.measured.limited.tally.rejected.count();
        let asked = rejected.saturating_sub(self.measured.local_rejections());
        writeln!(f, "what rejections cost")?;
        writeln!(
            f,
            "  calls            {:.3} of the script per rejection; {:.2} % of the rejections were made without Redis",
            asked as f64 / rejected.max(1) as f64,
            percent(self.measured.local_rejections(), rejected)
        )?;
        for (name, percent) in [("p50", 50.0), ("p99", 99.0)] {
            let milliseconds = |latencies: &Latencies| latencies.percentile(percent).as_secs_f64() * 1e3;
            let tallies = self.measured.rounds.iter().map(|round| &round.limited.tally);
            let both = tallies.map(|tally| (milliseconds(&tally.rejected), milliseconds(&tally.allowed)));
            let more = Difference::between(both);
            writeln!(f, "  {name} beside allowed requests   {}", more.with_unit("ms"))?;
        }
        Ok(())
    }

    fn hot_key(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: u64| count as f64 / self.options.seconds as f64;
        writeln!(f, "one user under attack")?;
        writeln!(
            f,
            "  calls            {:.1} of the script a second from each instance",
            per_second(self.measured.spent.script_calls) / INSTANCES as f64
        )?;
        writeln!(
            f,
            "  local rejections    {:.1} a second, of all instances together",
            per_second(self.measured.local_rejections())
        )?;
        if let Some(busy) = self.measured.limited.processor_seconds.filter(|busy| *busy > 0.0) {
            let rejections = self.measured.local_rejections() as f64 / busy;
            writeln!(
                f,
                "                   {rejections:.0} in a second of a processor, the generator included"
            )?;
        }
        Ok(())
    }
}
