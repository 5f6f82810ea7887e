//! Documentation pages for users. The pages for contributors, such as the design, are in the repository.

#[doc = include_str!("../docs/alerts.md")]
pub mod alerts {}

#[doc = include_str!("../docs/choosing.md")]
pub mod choosing {}

#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = include_str!("../docs/mistakes.md")]
pub mod mistakes {}

#[doc = include_str!("../docs/moving.md")]
pub mod moving {}

#[doc = include_str!("../docs/options.md")]
pub mod options {}

#[doc = include_str!("../docs/outages.md")]
#[doc = "\nRedis is paused and killed under load, measured with `load --mode outage`:\n\n"]
#[doc = include_str!("../docs/pictures/outage.svg")]
pub mod outages {}

#[doc = include_str!("../docs/PRODUCTION.md")]
pub mod production {}

#[doc = include_str!("../docs/proxies.md")]
pub mod proxies {}

#[cfg_attr(feature = "serde", doc = include_str!("../docs/recipes.md"))]
#[cfg_attr(not(feature = "serde"), doc = "The recipes need the feature `serde`.")]
pub mod recipes {}

#[doc = include_str!("../docs/SCALE.md")]
#[doc = "\nMemory by the number of callers, measured with `load --mode callers`:\n\n"]
#[doc = include_str!("../docs/pictures/memory.svg")]
pub mod scale {}

#[doc = include_str!("../docs/troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("../docs/tuning.md")]
pub mod tuning {}
