//! A faulty proxy loses, doubles or swaps replies, and no call receives the reply to another one.

use std::fmt::Debug;

use futures_util::future::{BoxFuture, join_all};
use test_kit::{
    Proxy, RedisServer, ReplyFault,
    load::{HANG, until},
};
use tokio::time::timeout;
use tower_quota::{CallerQuotas, PartitionKey, RedisStore, redis::cmd};
use tower_quota_fleet::{Contract, Contracts, Control, Publication, RulesSource};

use crate::{
    servers::{publisher_at, rules_at},
    source::hour,
};

const FAULTS: [ReplyFault; 3] = [ReplyFault::Drop, ReplyFault::Double, ReplyFault::Swap];

/// A question, and its answer.
type Question<'a> = Box<dyn Fn() -> BoxFuture<'a, Result<String, String>> + 'a>;

fn question<'a, T: Debug, E: Debug, A>(ask: impl Fn() -> A + 'a) -> Question<'a>
where
    A: Future<Output = Result<T, E>> + Send + 'a,
{
    Box::new(move || {
        let asked = ask();
        Box::pin(async move {
            let answer = asked.await;
            answer
                .map(|value| format!("{value:?}"))
                .map_err(|error| format!("{error:?}"))
        })
    })
}

/// Asks the questions at once, while each fault disturbs their replies, from the first of them to the last.
async fn each_answer_is_its_own(proxy: &Proxy, questions: Vec<Question<'_>>) {
    let ask = || async { join_all(questions.iter().map(|question| question())).await };
    let own = ask().await;
    assert!(own.iter().all(Result::is_ok), "{own:?}");
    for fault in FAULTS {
        for place in 0..questions.len() {
            let mut turned = own.clone();
            turned.rotate_left(place);
            proxy.disturb_replies(fault);
            let questions = questions[place..].iter().chain(&questions[..place]);
            let answers = timeout(HANG, join_all(questions.map(|question| question()))).await;
            let answers = answers.expect("no call waits for a reply that another has got");
            assert!(!proxy.is_disturbing());
            for (answer, own) in answers.iter().zip(&turned) {
                assert!(
                    answer.is_err() || answer == own,
                    "{fault:?} {place}: {answer:?} and not {own:?}"
                );
            }
            assert!(answers.iter().any(Result::is_err), "{fault:?} {place} was not noticed");
            until("the connection is replaced", async || ask().await == own).await;
        }
    }
}

#[tokio::test]
async fn a_disturbed_reply_gives_no_customer_the_contract_of_another() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let table = Contracts::new(RedisStore::builder(proxy.url()), "replies").unwrap();
    let callers = (0..12).map(|number: u64| PartitionKey::new("customer", number.to_string()));
    let callers: Vec<_> = callers.collect();
    for (number, caller) in callers.iter().enumerate().skip(1) {
        let quotas = CallerQuotas::new().quota("minute", number as u64);
        table.set(caller, &Contract::new(quotas)).await.unwrap();
    }
    let table = &table;
    let questions = callers.iter().map(|caller| question(move || table.quotas(caller)));
    each_answer_is_its_own(&proxy, questions.collect()).await;
}

#[tokio::test]
async fn a_disturbed_reply_gives_no_instance_another_version_order_list_or_document() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let publisher = publisher_at(RedisStore::builder(server.url()), "replies");
    let published = publisher.publish(Publication::rules(hour(7))).await.unwrap();
    for control in [Control::switch_off(), Control::block_network("192.0.2.0/24")] {
        publisher.control(control).await.unwrap();
    }
    let rules = rules_at(RedisStore::builder(proxy.url()), "replies");
    let (rules, version) = (&rules, published.version());
    let questions = vec![
        question(move || rules.state()),
        question(move || rules.document(version)),
        question(move || rules.access(version)),
        question(move || rules.instances()),
    ];
    each_answer_is_its_own(&proxy, questions).await;
}

#[tokio::test]
async fn a_disturbed_reply_answers_no_other_command() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).connections(1).build().unwrap();
    let script = "return {ARGV[1], #ARGV, ARGV[3]}";
    let store = &store;
    let questions = (0..8_u32).map(|number| {
        question(move || {
            let mut command = cmd("EVAL");
            command.arg(script).arg(0).arg(number).arg("last");
            store.command("any", command)
        })
    });
    each_answer_is_its_own(&proxy, questions.collect()).await;
}
