mod algorithms;
mod calendars;
mod call;
mod charges;
mod query;
mod reply;
mod requests;

pub(super) use self::{
    calendars::ServerTime,
    call::{Call, SentOn},
    reply::{Reply, decode, decode_each, note_readings},
};
