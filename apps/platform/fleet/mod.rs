//! Rules of a fleet: all instances follow one rule set in Redis, which the operators of any instance can change.
//!
//! A change is proposed first, so that the operator sees its effects. The change is published only if the version that
//! the operator saw is still current.

mod order;
mod shown;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use serde_json::{Value, json};
use tower_quota::{Access, AccessList, RateLimitLayer, RedisStore, Rules, RulesHandle};
use tower_quota_fleet::{
    AccessEntry, Control, FleetError, FleetErrorKind, Proposal, Publication, Published, RedisRules, Rollout,
    RulesDocument, RulesFollower, RulesPublisher, SwitchOrder,
};

use self::order::Order;
use super::{
    admin::{Admin, Failure, json, unavailable, unprocessable},
    blocks::{self, Block, Client},
    rules::off_runtime,
    state::instance,
};

#[derive(Clone)]
pub(crate) struct Fleet {
    rules: RedisRules,
    /// Follows the published version until the last clone is dropped.
    follower: RulesFollower,
    handle: RulesHandle,
}

impl Fleet {
    /// Until the first version is read, the layer applies the rules with which it was built.
    pub(crate) fn follow(
        set: &str,
        redis_url: &str,
        limits: &RateLimitLayer,
        access: &AccessList,
    ) -> Result<Self, FleetError> {
        // In production, use separate Redis users for instances and publishers: see the guide of `tower-quota-fleet`.
        let rules = RedisRules::new(RedisStore::builder(redis_url), set)?;
        let follower = RulesFollower::builder(limits.limiter().rules(), rules.clone())
            .access_list(access.clone())
            .instance(instance())
            .start()?;
        Ok(Self {
            rules,
            follower,
            handle: limits.limiter().rules(),
        })
    }

    /// Returns the known state of the rules without calling Redis.
    pub(crate) fn to_json(&self) -> Value {
        let status = self.follower.status();
        let rejected = status.rejected().map(|(version, error)| {
            json!({
                "number": version.number(),
                "message": error.to_string(),
            })
        });
        json!({
            "set": self.rules.name(),
            "version": status.version().map(|version| version.to_string()),
            "number": status.version().map(|version| version.number()),
            "percent": self.handle.rollout().map(|(percent, _)| percent),
            "rejected": rejected,
            "failure": status.failure(),
            "controls_failure": status.controls_failure(),
            "lost": status.lost().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "switch_number": status.switch().map_or(0, SwitchOrder::number),
            "access_number": status.access_number(),
            "is_overridden": status.is_overridden(),
        })
    }

    fn publisher(&self, author: &str) -> RulesPublisher {
        RulesPublisher::new(self.rules.clone(), author)
    }

    /// Returns the published version with its rollout, and restricts `order` to this version.
    async fn tried(&self, order: &mut Order) -> Result<Published, Failure> {
        let published = self.publisher("").current().await.map_err(failure)?;
        let tried = published.filter(|published| published.document().roll_out().is_some());
        let tried = tried.ok_or_else(|| (StatusCode::CONFLICT, "no rules are being tried\n".to_owned()))?;
        order.is_about(&tried.version().to_string());
        Ok(tried)
    }

    /// Publishes a change for all instances, or returns a preview.
    async fn change(&self, change: Publication, order: Order) -> Result<Response, Failure> {
        let publisher = self.publisher(&order.author());
        let change = match order.restarts_counts() {
            true => change.allow_count_reset(),
            false => change,
        };
        let proposal = publisher.propose(change.clone()).await.map_err(failure)?;
        let before = proposal.base().map(|before| before.version().to_string());
        if order.has_seen_another(before.as_deref()) {
            return Err(outdated(&proposal));
        }
        let handle = self.handle.clone();
        let (proposal, checked) = off_runtime(move || {
            let checked = check(&handle, &proposal);
            (proposal, checked)
        })
        .await;
        checked?;
        if order.is_preview() {
            return Ok(Json(preview(&proposal)).into_response());
        }
        if !order.is_confirmed() && proposal.drastic().next().is_some() {
            let changes: Vec<_> = proposal.drastic().map(ToString::to_string).collect();
            return Err(unconfirmed(&changes.join("; ")));
        }
        let published = publisher.commit(&proposal).await;
        let published = published.map_err(failure)?;
        tracing::warn!("an operator has published {published} for all instances");
        Ok(Json(json!({ "number": published.version().number() })).into_response())
    }

    /// Changes the switch or the access list of all instances. Works without published rules.
    async fn control(&self, control: Control, order: Order) -> Result<Response, Failure> {
        if let Some(warning) = control.warning().filter(|_| !order.is_confirmed()) {
            return Err(unconfirmed(&warning));
        }
        let controls = self
            .publisher(&order.author())
            .control(control.because(order.reason()))
            .await;
        let controls = controls.map_err(failure)?;
        tracing::warn!("an operator has changed the switch or the access list of all instances");
        Ok(Json(shown::controls(&controls)).into_response())
    }
}

/// Rejects rules that this instance cannot apply, because such rules should not reach any instance.
///
/// Unchanged rules are not checked again. Operators of an instance that rejects the current rules can therefore still
/// disable the limits, block clients and end a rollout.
fn check(handle: &RulesHandle, proposal: &Proposal) -> Result<(), Failure> {
    let (held, document) = (held(proposal), proposal.document());
    let rules = Some(document.rules()).filter(|rules| held.is_none_or(|held| held.rules() != *rules));
    let tried = document.roll_out();
    let tried = tried.filter(|tried| held.and_then(RulesDocument::roll_out) != Some(tried));
    for rules in rules.into_iter().chain(tried.map(Rollout::rules)) {
        handle.check(rules).map_err(unprocessable)?;
    }
    Ok(())
}

fn held(proposal: &Proposal) -> Option<&RulesDocument> {
    proposal.base().map(Published::document)
}

fn preview(proposal: &Proposal) -> Value {
    json!({
        "before": proposal.base().map(|before| before.version().to_string()),
        "is_empty": proposal.is_empty(),
        "effects": proposal.to_string().lines().collect::<Vec<_>>(),
        "count_resets": proposal.count_resets().map(ToString::to_string).collect::<Vec<_>>(),
        "drastic": proposal.drastic().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The response to a change that requires explicit confirmation.
fn unconfirmed(warning: &str) -> Failure {
    let status = StatusCode::PRECONDITION_REQUIRED;
    (status, format!("this needs another confirmation: {warning}\n"))
}

fn outdated(proposal: &Proposal) -> Failure {
    let holds = proposal.base().map_or("no version".to_owned(), ToString::to_string);
    let message = format!("the rules have changed meanwhile, {holds} holds; look at them again\n");
    (StatusCode::PRECONDITION_FAILED, message)
}

fn failure(error: FleetError) -> Failure {
    let status = match error.kind() {
        FleetErrorKind::Conflict => StatusCode::PRECONDITION_FAILED,
        FleetErrorKind::NotListed => StatusCode::NOT_FOUND,
        FleetErrorKind::AfterRollBack
        | FleetErrorKind::CountsReset
        | FleetErrorKind::NothingPublished
        | FleetErrorKind::NoEarlierVersion => StatusCode::CONFLICT,
        FleetErrorKind::UnreadableAccess => {
            let message = format!("{error}; `tower-quota-rules unblock --all` begins a new list\n");
            return (StatusCode::CONFLICT, message);
        }
        FleetErrorKind::Unreadable => {
            let message = format!("{error}; `tower-quota-rules rollback --overwrite` takes its place\n");
            return (StatusCode::CONFLICT, message);
        }
        FleetErrorKind::Unavailable => return unavailable(error),
        _ => return unprocessable(error),
    };
    (status, format!("{error}\n"))
}

type Changed = Result<Response, Failure>;

pub(crate) fn router(fleet: Fleet) -> Router<Admin> {
    Router::new()
        .route("/fleet", get(shown::show))
        .route("/rules", get(rules).post(replace_rules))
        .route("/document", get(document))
        .route("/roll-out", get(tried_rules).post(roll_out_to_all).delete(end_roll_out))
        .route("/roll-out/{percent}", put(roll_out))
        .route("/roll-back", post(roll_back))
        .route("/roll-back/{version}", post(roll_back_to))
        .route("/switch/{position}", post(switch))
        .route("/own-switch/{position}", post(own_switch))
        .route("/block", post(block).delete(unblock))
        .with_state(fleet)
        // Applies only to this instance and does not require Redis, like `/own-switch`.
        .route("/own-block", post(blocks::block).delete(blocks::unblock))
}

/// Returns the rules that this instance applies.
async fn rules(State(fleet): State<Fleet>) -> impl IntoResponse {
    json(text(&fleet.handle.current()))
}

/// Returns the document that this instance enforces. If Redis loses it, publish it with
/// `tower-quota-rules restore FILE`.
async fn document(State(fleet): State<Fleet>) -> Result<Response, Failure> {
    let Some(document) = fleet.follower.document() else {
        let message = "this instance has the rules of its file, and read none of the fleet\n";
        return Err((StatusCode::NOT_FOUND, message.to_owned()));
    };
    Ok(json(document.to_json().map_err(unprocessable)?).into_response())
}

/// Returns the rules in rollout, or 204 without a rollout, which can end at any time.
async fn tried_rules(State(fleet): State<Fleet>) -> Response {
    match fleet.handle.rollout() {
        Some((_, rules)) => json(text(&rules)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

fn text(rules: &Rules) -> String {
    serde_json::to_string_pretty(rules).unwrap_or_else(|error| error.to_string())
}

async fn parsed(json: String) -> Result<Rules, Failure> {
    off_runtime(move || serde_json::from_str(&json).map_err(unprocessable)).await
}

async fn replace_rules(State(fleet): State<Fleet>, order: Order, json: String) -> Changed {
    let rules = parsed(json).await?;
    fleet.change(Publication::rules(rules), order).await
}

/// Applies the rules in the body to `percent` percent of the callers. Without a body, changes the percentage of the
/// current rollout.
async fn roll_out(State(fleet): State<Fleet>, Path(percent): Path<u8>, mut order: Order, json: String) -> Changed {
    if percent > 100 {
        return Err(unprocessable(format_args!("percent {percent} is outside 0..=100")));
    }
    let change = if json.is_empty() {
        let published = fleet.tried(&mut order).await?;
        let tried = published.document().roll_out().expect("it has one");
        Publication::rules(tried.rules().clone()).with_partitions(tried.partitions().to_vec())
    } else {
        Publication::rules(parsed(json).await?)
    };
    fleet.change(change.rollout_percent(percent), order).await
}

async fn roll_out_to_all(State(fleet): State<Fleet>, mut order: Order) -> Changed {
    let published = fleet.tried(&mut order).await?;
    let tried = published.document().roll_out().expect("it has one");
    fleet.change(Publication::rules(tried.rules().clone()), order).await
}

async fn end_roll_out(State(fleet): State<Fleet>, mut order: Order) -> Changed {
    let published = fleet.tried(&mut order).await?;
    let rules = published.document().rules().clone();
    fleet.change(Publication::rules(rules), order).await
}

async fn roll_back(State(fleet): State<Fleet>, order: Order) -> Changed {
    fleet.change(Publication::roll_back(), order).await
}

async fn roll_back_to(State(fleet): State<Fleet>, Path(version): Path<u64>, order: Order) -> Changed {
    fleet.change(Publication::roll_back_to(version), order).await
}

/// Changes the switch of all instances.
async fn switch(State(fleet): State<Fleet>, Path(position): Path<String>, order: Order) -> Changed {
    let control = match (&*position, order.seconds()) {
        ("on", _) => Control::switch_on(),
        ("off", None) => Control::switch_off(),
        ("off", Some(time)) => Control::switch_off().expires_in(time),
        _ => return Ok(StatusCode::NOT_FOUND.into_response()),
    };
    fleet.control(control, order).await
}

/// Changes the switch of this instance, which overrides the fleet's. Does not require Redis.
async fn own_switch(State(fleet): State<Fleet>, Path(position): Path<String>) -> StatusCode {
    match &*position {
        "on" => fleet.handle.enable(),
        "off" => fleet.handle.disable(),
        "fleet" => fleet.handle.clear_overrides(),
        _ => return StatusCode::NOT_FOUND,
    }
    tracing::warn!("an operator has turned the switch of this instance: {position}");
    StatusCode::NO_CONTENT
}

async fn block(State(fleet): State<Fleet>, order: Order, Json(block): Json<Block>) -> Changed {
    let time = block.time()?;
    let control = Control::set_access(entry(&block.client));
    fleet
        .control(time.into_iter().fold(control, Control::expires_in), order)
        .await
}

async fn unblock(State(fleet): State<Fleet>, order: Order, Json(client): Json<Client>) -> Changed {
    fleet.control(Control::remove_access(entry(&client)), order).await
}

fn entry(client: &Client) -> AccessEntry {
    match client {
        Client::Network(network) => AccessEntry::network(network, Access::Block),
        Client::User(id) => AccessEntry::key("user", id, Access::Block),
    }
}
