//! The handler behind the layers: it reports, fails, hangs and streams as specified by a step.

use std::{
    convert::Infallible,
    panic::resume_unwind,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
use tower_quota::{ActualCost, Decision, Permit, RateLimitLayer, WeakPermit};

use super::{
    remote::Remote,
    steps::{End, PermitEnd, Report, Work},
};

pub type AnyBody = UnsyncBoxBody<Bytes, Infallible>;
pub type Service = BoxCloneService<Request<String>, Response<AnyBody>, &'static str>;

/// The decisions of a request in the order of the layers, each with the numbers of store calls up to then.
pub type Passed = Arc<Mutex<Vec<(Decision, [usize; 2])>>>;

/// The part of a request that its handler reads.
#[derive(Clone)]
pub struct Order {
    pub work: Work,
    pub has_begun: Arc<AtomicBool>,
}

pub fn handler() -> Service {
    BoxCloneService::new(service_fn(async |request: Request<String>| {
        let order = request.extensions().get::<Order>().unwrap();
        order.has_begun.store(true, Ordering::SeqCst);
        let (work, permit) = (
            order.work.clone(),
            request.extensions().get().and_then(WeakPermit::upgrade),
        );
        for said in &work.reports {
            permit.iter().for_each(|permit| report(permit, *said));
        }
        if let (Some(end), true) = (work.permit, permit.is_some()) {
            finish(request.extensions().get().and_then(WeakPermit::upgrade).unwrap(), end);
        }
        match work.end {
            End::Fails => return Err("the handler has failed"),
            End::Panics => resume_unwind(Box::new("the handler has panicked")),
            End::Hangs => std::future::pending().await,
            End::Empty | End::Read | End::Dropped | End::Kept => {}
        }
        let streams = work.end != End::Empty;
        let mut response = Response::new(AnyBody::new(Paper {
            pages: usize::from(streams),
            reports: work.streamed.clone(),
            permit: permit.filter(|_| streams),
        }));
        if let Some(actual) = work.actual {
            response.extensions_mut().insert(ActualCost(actual));
        }
        Ok(response)
    }))
}

/// A layer, which notes how each request passes it.
pub fn wrapped(layer: &RateLimitLayer, inner: Service, passed: &Passed, stores: &[Remote; 2]) -> Service {
    let (passed, stores) = (Arc::clone(passed), stores.clone());
    let noting = inner.map_request(move |request: Request<String>| {
        let decision = request.extensions().get::<Decision>().unwrap().clone();
        passed
            .lock()
            .unwrap()
            .push((decision, stores.each_ref().map(Remote::calls)));
        request
    });
    BoxCloneService::new(layer.layer(noting).map_response(|response| response.map(AnyBody::new)))
}

pub fn report(permit: &Permit, report: Report) {
    let _ = match report {
        Report::Add(more) => permit.add("tokens", more),
        Report::Set(total) => permit.set("tokens", total),
        Report::Finish(total) => permit.finish("tokens", total),
    };
}

pub fn finish(permit: Permit, end: PermitEnd) {
    match end {
        PermitEnd::Drop => drop(permit),
        PermitEnd::Settle(cost) => permit.settle(cost),
        PermitEnd::Refund => permit.refund(),
        PermitEnd::Report(said) => report(&permit, said),
    }
}

/// One page or none, and reports when it is read.
struct Paper {
    pages: usize,
    reports: Vec<Report>,
    permit: Option<Permit>,
}

impl Body for Paper {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.pages == 0 {
            return Poll::Ready(None);
        }
        self.pages = 0;
        for said in &self.reports {
            self.permit.iter().for_each(|permit| report(permit, *said));
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"page")))))
    }

    fn is_end_stream(&self) -> bool {
        self.pages == 0
    }
}
