use bytes::Bytes;
use http::{Extensions, Response, StatusCode, response};
use http_body::Body;

use super::{
    RateLimitBody,
    admission::{Admitted, Limits},
    cost::ActualCost,
};
use crate::{
    decision::{Costs, Decision, Outcome, Settlement},
    fields::Prepared,
    limiter::{MemoryCharge, OpenCharge},
    response::fields::is_redirect,
    rules::QuotaSet,
};

impl Limits {
    pub(super) fn answer<B: Body<Data = Bytes>>(
        &self,
        admitted: Admitted,
        mut response: Response<B>,
    ) -> Response<RateLimitBody<B>> {
        match &admitted {
            Admitted::Charged(charge) if self.tell_numbers(charge, &mut response) => {
                response.map(|body| RateLimitBody::passed(body, None))
            }
            _ => self.answer_decided(admitted, response),
        }
    }

    /// Not inlined, so that usual responses run through less code.
    #[inline(never)]
    fn answer_decided<B: Body<Data = Bytes>>(
        &self,
        admitted: Admitted,
        response: Response<B>,
    ) -> Response<RateLimitBody<B>> {
        let (mut decision, policies, charge) = match admitted {
            Admitted::Charged(charge) => {
                let (decision, set) = charge.decide();
                (decision, Some(set), None)
            }
            Admitted::Decided {
                decision,
                policies,
                charge,
            } => (decision, policies, charge),
        };
        let (head, body) = response.into_parts();
        let is_upgrade = head.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade && charge.as_ref().is_some_and(OpenCharge::holds_slots_alone) {
            self.log.slot_not_taken();
        }
        if let Some(charge) = charge.as_ref().filter(|_| body.is_end_stream()) {
            charge.ended();
        }
        if decision.admitted().is_some() {
            self.settle(&mut decision, charge.as_deref(), &head, &body);
        }
        let charge = charge.filter(|_| !body.is_end_stream());
        let mut response = Response::from_parts(head, RateLimitBody::passed(body, charge));
        let fields = self.prepared(policies.as_deref());
        let told = self.view.fields().told(&decision, fields);
        self.view.fields().tell(&decision, fields, &told, &mut response);
        self.insert_decision(decision, &mut response);
        response
    }

    /// Writes the fields from the numbers of the charge. Returns `false` and writes nothing if that needs the decision.
    #[inline]
    fn tell_numbers<B>(&self, charge: &MemoryCharge, response: &mut Response<B>) -> bool {
        let view = charge.set.view(self.view.position);
        let is_unusual = is_redirect(response.status()) || response.extensions().get::<ActualCost>().is_some();
        if is_unusual || !self.tells_numbers || !view.takes_numbers {
            return false;
        }
        view.fields.as_ref().is_none_or(|fields| {
            let mut numbers = Default::default();
            charge.charged.left(charge.policies(), &mut numbers);
            fields.write_numbers(response.headers_mut(), &numbers)
        })
    }

    /// A rejection by an inner layer is not refunded: see the page `address` of the guide.
    fn settle(
        &self,
        decision: &mut Decision,
        charge: Option<&OpenCharge>,
        head: &response::Parts,
        body: &impl Body<Data = Bytes>,
    ) {
        match (charge, self.cost.actual(head)) {
            (None, None) => {}
            (None, Some(actual)) => self.settle_cost(decision, actual),
            (Some(charge), actual) => {
                if is_rejected(&head.extensions) {
                    charge.rejected();
                }
                let charged = charge.announce(actual, body.size_hint().exact());
                decision.set_charged(charged);
            }
        }
    }

    fn settle_cost(&self, decision: &mut Decision, actual: u64) {
        let charged = Costs {
            requests: actual,
            ..decision.charged()
        };
        if charged != decision.charged() {
            let settlement = Settlement::change(decision, charged);
            self.limiter.0.guard.settle(decision, settlement);
        }
        decision.set_charged(charged);
    }

    pub(super) fn prepared<'a>(&self, policies: Option<&'a QuotaSet>) -> Option<&'a Prepared> {
        policies.and_then(|set| set.view(self.view.position).fields.as_deref())
    }

    /// By default, only unusual decisions are inserted: a response without a decision was allowed, or no limit applies
    /// to it.
    pub(super) fn insert_decision<B>(&self, decision: Decision, response: &mut Response<B>) {
        let is_usual = matches!(decision.outcome(), Outcome::Allowed | Outcome::Unlimited);
        // An inner layer may have rejected a request that this layer allowed.
        if (self.decision_in_response || !is_usual) && !is_rejected(response.extensions()) {
            // Others may read the decision, but only this layer settles the charge.
            let _ = decision.take_receipt();
            response.extensions_mut().insert(decision);
        }
    }
}

fn is_rejected(response: &Extensions) -> bool {
    let decision = response.get::<Decision>();
    decision.is_some_and(|decision| !decision.outcome().is_admitted())
}
