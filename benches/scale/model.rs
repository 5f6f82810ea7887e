//! The model of docs/SCALE.md: from what was measured to what a load takes.

/// The figures that were measured, as the page has them.
pub(crate) struct Inputs {
    /// Microseconds of a server's processor for a decision that has a call for itself: three policies of one partition.
    pub(crate) alone: f64,
    /// The same for one of many that share a call, and how many that were.
    pub(crate) shared: f64,
    pub(crate) together: f64,
    /// Bytes on the wire for a decision, both ways, alone and shared.
    pub(crate) bytes_alone: f64,
    pub(crate) bytes_shared: f64,
    /// Bytes of a server's memory for a caller.
    pub(crate) caller: f64,
    /// Microseconds of an instance's processors for a request.
    pub(crate) layer: f64,
    /// Calls for each request of a caller whose units are prefetched.
    pub(crate) prefetched: f64,
}

/// The names of the inputs in the page, in the order of the fields.
pub(crate) const NAMES: [&str; 8] = [
    "server time, three policies, alone in a call (µs)",
    "server time, three policies, shared calls (µs)",
    "decisions in a shared call",
    "bytes on the wire, alone",
    "bytes on the wire, shared calls",
    "bytes of memory for a caller, three policies",
    "time of the layer in an instance (µs)",
    "calls for each prefetched request",
];

/// The planned part of a server's processor.
const USED: f64 = 0.5;
/// The planned part of a server's memory for callers, in bytes: half of 64 GiB.
const MEMORY: f64 = 32.0 * 1_073_741_824.0;
/// Requests a second of an instance: an assumption.
const INSTANCE: f64 = 5_000.0;
/// The seconds in which decisions of an instance come together for a call: about a round trip in a data centre.
const TOGETHER: f64 = 0.000_5;

const RATES: [f64; 3] = [30e3, 1e6, 30e6];
const CALLERS: [f64; 2] = [10e6, 1e9];

/// The resources that a load takes.
struct Needs {
    /// Decisions that share a call.
    together: f64,
    by_time: f64,
    by_memory: f64,
    shards: f64,
    instances: f64,
}

impl Inputs {
    /// Reads the values from the rows `| name | value | …` of a page.
    pub(crate) fn read(page: &str) -> Result<Self, String> {
        let value = |name: &str| {
            let mut rows = page.lines().map(|line| line.split('|').map(str::trim));
            let row = rows.find(|row| row.clone().nth(1) == Some(name));
            let value = row.and_then(|mut row| row.nth(2)).and_then(|value| value.parse().ok());
            value.ok_or_else(|| format!("there is no row for {name:?} with a number"))
        };
        let mut values = NAMES.into_iter().map(value);
        let mut next = || values.next().expect("each field has a name");
        Ok(Self {
            alone: next()?,
            shared: next()?,
            together: next()?,
            bytes_alone: next()?,
            bytes_shared: next()?,
            caller: next()?,
            layer: next()?,
            prefetched: next()?,
        })
    }

    /// A figure per decision where `together` decisions share a call: one part per decision, and one per call.
    fn at(&self, together: f64, [alone, shared]: [f64; 2]) -> f64 {
        let call = (alone - shared) / (1.0 - 1.0 / self.together);
        alone - call + call / together
    }

    fn micros(&self, together: f64) -> f64 {
        self.at(together, [self.alone, self.shared])
    }

    /// Shards and the sharing of calls depend on each other: more shards, fewer decisions that share a call. The least number
    /// of shards that is enough is looked for from below.
    fn needs(&self, rate: f64, callers: f64, decisions: f64) -> Needs {
        let instances = (rate / INSTANCE).ceil();
        let by_memory = (callers * self.caller / MEMORY).ceil();
        let mut shards = by_memory.max(1.0);
        loop {
            let own = decisions / instances / shards * TOGETHER;
            let together = own.clamp(1.0, self.together);
            let by_time = (decisions * self.micros(together) / 1e6 / USED).ceil();
            if by_time <= shards {
                return Needs {
                    together,
                    by_time,
                    by_memory,
                    shards,
                    instances,
                };
            }
            shards += 1.0;
        }
    }

    /// The tables of the page.
    pub(crate) fn tables(&self) -> String {
        format!("{}\n{}", self.loads(), self.prefetches())
    }

    fn loads(&self) -> String {
        let mut table = "\
| requests a second | callers | decisions in a call | shards for the time | shards for the memory | shards | \
instances | cores of the layer | Mbit/s of a shard |
|---|---|---|---|---|---|---|---|---|
"
        .to_owned();
        for rate in RATES {
            for callers in CALLERS {
                let needs = self.needs(rate, callers, rate);
                let bytes = self.at(needs.together, [self.bytes_alone, self.bytes_shared]);
                table += &format!(
                    "| {} | {} | {:.1} | {} | {} | **{}** | {} | {:.1} | {:.0} |\n",
                    short(rate),
                    short(callers),
                    needs.together,
                    needs.by_time,
                    needs.by_memory,
                    needs.shards,
                    needs.instances,
                    rate * self.layer / 1e6,
                    rate / needs.shards * bytes * 8.0 / 1e6,
                );
            }
        }
        table
    }

    fn prefetches(&self) -> String {
        let mut table = "\
| requests a second | of them prefetched | calls a second | shards for the time |
|---|---|---|---|
"
        .to_owned();
        for rate in &RATES[1..] {
            for part in [0.5, 0.9] {
                let decisions = rate * (1.0 - part + part * self.prefetched);
                let shards = (decisions * self.alone / 1e6 / USED).ceil();
                table += &format!(
                    "| {} | {:.0} % | {:.0} | {shards} |\n",
                    short(*rate),
                    part * 100.0,
                    decisions,
                );
            }
        }
        table
    }
}

fn short(number: f64) -> String {
    match number {
        1e9.. => format!("{} G", number / 1e9),
        1e6.. => format!("{} M", number / 1e6),
        _ => format!("{} 000", number / 1e3),
    }
}
