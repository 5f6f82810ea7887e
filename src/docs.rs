//! Documentation pages.

#[doc = include_str!("../docs/alerts.md")]
pub mod alerts {}

#[doc = include_str!("../docs/choosing.md")]
pub mod choosing {}

#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = include_str!("../docs/decisions.md")]
pub mod decisions {}

#[doc = include_str!("../docs/DESIGN.md")]
pub mod design {}

#[doc = include_str!("../docs/mistakes.md")]
pub mod mistakes {}

#[doc = include_str!("../docs/moving.md")]
pub mod moving {}

#[doc = include_str!("../docs/PRODUCTION.md")]
#[doc = "\n## Pictures\n\nRedis is paused and killed under load, measured with `load --mode outage`:\n\n"]
#[doc = include_str!("../docs/pictures/outage.svg")]
#[doc = "\nMemory, measured with `load --mode callers`:\n\n"]
#[doc = include_str!("../docs/pictures/memory.svg")]
pub mod production {}

#[doc = include_str!("../docs/proxies.md")]
pub mod proxies {}

#[doc = include_str!("../docs/regions.md")]
pub mod regions {}

#[doc = include_str!("../docs/SCALE.md")]
pub mod scale {}
