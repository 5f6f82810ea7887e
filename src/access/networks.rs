use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use ipnet::IpNet;

/// One map per prefix length in use: a lookup reads at most 33 maps for IPv4 and 129 for IPv6.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks<V> {
    v4: ByLength<V>,
    v6: ByLength<V>,
}

/// Longest prefix first, then by the first address of the network.
type ByLength<V> = BTreeMap<Reverse<u8>, HashMap<IpAddr, V, RandomState>>;

impl<V> Networks<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.v4.values().chain(self.v6.values()).map(HashMap::len).sum()
    }

    pub(super) fn insert(&mut self, network: IpNet, value: V) -> Option<V> {
        let family = self.family_mut(network.addr());
        let values = family.entry(Reverse(network.prefix_len())).or_default();
        values.insert(network.addr(), value)
    }

    pub(super) fn remove(&mut self, network: IpNet) -> Option<V> {
        let (family, length) = (self.family_mut(network.addr()), Reverse(network.prefix_len()));
        let values = family.get_mut(&length)?;
        let removed = values.remove(&network.addr());
        if values.is_empty() {
            family.remove(&length);
        }
        removed
    }

    pub(super) fn get(&self, network: IpNet) -> Option<&V> {
        let family = self.family(network.addr());
        family.get(&Reverse(network.prefix_len()))?.get(&network.addr())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, &V)> {
        let families = self.v4.iter().chain(&self.v6);
        families.flat_map(|(length, values)| {
            let network = |address| IpNet::new(address, length.0).ok();
            values
                .iter()
                .filter_map(move |(address, value)| Some((network(*address)?, value)))
        })
    }

    pub(super) fn longest_match(&self, address: IpAddr) -> Option<&V> {
        let mut family = self.family(address).iter();
        family.find_map(|(length, values)| values.get(&IpNet::new(address, length.0).ok()?.network()))
    }

    fn family(&self, address: IpAddr) -> &ByLength<V> {
        match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        }
    }

    fn family_mut(&mut self, address: IpAddr) -> &mut ByLength<V> {
        match address {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_asks_one_map_for_each_prefix_length_however_many_networks_there_are() {
        let mut networks = Networks::default();
        for number in 0..100_000_u32 {
            let length = [20, 24, 32][number as usize % 3];
            let network = IpNet::new(IpAddr::from(number.reverse_bits().to_be_bytes()), length);
            networks.insert(network.unwrap().trunc(), number);
        }
        let lengths: Vec<u8> = networks.v4.keys().map(|length| length.0).collect();
        assert_eq!(lengths, [32, 24, 20]);
        assert!(networks.v6.is_empty());
    }

    #[test]
    fn a_prefix_length_that_no_network_has_any_more_is_not_asked_about() {
        let mut networks = Networks::default();
        let network = |text: &str| text.parse::<IpNet>().unwrap();
        networks.insert(network("10.0.0.0/8"), 1);
        networks.insert(network("10.1.0.0/16"), 2);
        assert_eq!(networks.remove(network("10.1.0.0/16")), Some(2));
        assert_eq!(networks.remove(network("10.1.0.0/16")), None);
        assert_eq!(networks.v4.len(), 1);
        assert_eq!(networks.longest_match("10.1.2.3".parse().unwrap()), Some(&1));
        assert_eq!(networks.remove(network("10.0.0.0/8")), Some(1));
        assert!(networks.is_empty());
    }
}
