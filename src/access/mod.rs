mod access_list;
mod exemption;
mod hooks;
mod keyed_request;
mod networks;
mod overlay;
mod path;
mod screening;

pub use self::{
    access_list::{Access, AccessList, AccessRules},
    exemption::Exemption,
    hooks::{AbnormalUsage, Capacity},
    overlay::AccessOverlay,
};
pub(crate) use self::{
    keyed_request::KeyedRequest,
    screening::{Screened, Screening},
};
