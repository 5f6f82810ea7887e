pub(crate) mod bounded_map;
pub(crate) mod deadline;
pub(crate) mod mutex;
pub(crate) mod per_thread;
pub(crate) mod random;
pub(crate) mod ready;
pub(crate) mod sharded;
pub(crate) mod sleep;
