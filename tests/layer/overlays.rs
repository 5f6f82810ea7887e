//! Rules of other sources in an access list, in addition to the program's rules.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tower_quota::{Access, AccessList, AccessRules, key};

fn list() -> AccessList {
    AccessList::new(key::client_ip())
}

fn rules(networks: &[(&str, Access)]) -> AccessRules {
    let mut rules = AccessRules::new();
    for (network, access) in networks {
        rules.set_network(network, *access).unwrap();
    }
    rules
}

fn blocking(network: &str) -> AccessRules {
    rules(&[(network, Access::Block)])
}

fn of(list: &AccessList, address: &str) -> Access {
    list.overlay_rules().access(address.parse().ok(), None)
}

const ONE: &str = "203.0.113.1";
const TWO: &str = "203.0.113.2";

#[test]
fn an_overlay_that_is_dropped_takes_its_rules_along_and_no_others() {
    let list = list();
    list.replace(blocking("198.51.100.0/24"));
    let (first, second) = (list.overlay(), list.overlay());
    first.replace(blocking(ONE));
    second.replace(blocking(TWO));
    first.replace(rules(&[(ONE, Access::Block), (TWO, Access::Allow)]));
    // Of two rules about one address the block.
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Block, Access::Block]);
    drop(first);
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Limit, Access::Block]);
    drop(second);
    assert_eq!((list.overlay_rules().len(), list.rules().len()), (0, 1));
}

#[test]
fn rules_that_were_left_stay_until_a_successor_of_the_same_name_has_rules_of_its_own() {
    let list = list();
    let named = |name: &str| list.overlay().named(name);
    let overlay = named("set api").named("scope api");
    overlay.replace(blocking(ONE));
    overlay.leave();
    let other = named("set admin");
    other.replace(blocking(TWO));
    let successor = named("set other").named("scope api");
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Block, Access::Block]);
    successor.replace(AccessRules::new());
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Limit, Access::Block]);

    // An overlay that was not left has no successor.
    let twin = named("set admin");
    twin.replace(blocking(ONE));
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Block, Access::Block]);
    drop(twin);
    assert_eq!([of(&list, ONE), of(&list, TWO)], [Access::Limit, Access::Block]);
}

#[test]
fn rules_that_were_left_without_a_name_have_no_successor() {
    let list = list();
    let overlay = list.overlay();
    overlay.replace(blocking(ONE));
    overlay.leave();
    list.overlay().replace(AccessRules::new());
    assert_eq!(of(&list, ONE), Access::Block);
}

#[test]
fn a_blocked_client_never_gets_through_while_a_source_is_replaced() {
    let (list, has_ended) = (list(), AtomicBool::new(false));
    let overlay = list.overlay().named("set");
    overlay.replace(blocking(ONE));
    overlay.leave();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                assert_eq!(of(&list, ONE), Access::Block);
            }
        });
        for _ in 0..1_000 {
            let overlay = list.overlay().named("set");
            overlay.replace(blocking(ONE));
            overlay.leave();
        }
        has_ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(list.overlay_rules().len(), 1);
}
