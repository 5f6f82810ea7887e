use std::{
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use super::{RedisServer, Setup};

const SLOTS: u16 = 16_384;

/// Longer than a cluster takes to agree, however busy the machine is.
const AGREEMENT: Duration = Duration::from_secs(30);

/// The shared cluster of this process, for tests that use their own keys and leave the cluster unchanged.
pub fn shared_cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3, 0))
}

/// A Redis Cluster, each of whose nodes is killed when this is dropped or the process ends, however it ends.
///
/// All methods block the thread. Starting takes some seconds, because a node waits two before it considers the cluster
/// usable.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, then their replicas in the same order.
    pub nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    /// Starts `primaries` primaries that share all slots evenly, and `replicas` replicas of each.
    pub fn start(primaries: usize, replicas: usize) -> Self {
        let count = primaries * (1 + replicas);
        let starting: Vec<_> = (0..count).map(|_| thread::spawn(start_node)).collect();
        let nodes = starting.into_iter().map(|node| node.join().unwrap()).collect();
        let cluster = Self { nodes, primaries };
        cluster.meet();
        for (number, node) in cluster.nodes.iter().enumerate().skip(primaries) {
            let primary = cluster.id(number % primaries);
            // A node can only follow one that it knows.
            eventually("a replica follows", || {
                node.command(&["CLUSTER", "REPLICATE", &primary]) == "OK"
            });
        }
        cluster.wait_for_agreement();
        cluster
    }

    fn meet(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < self.primaries {
                let (first, end) = self.share(number);
                let slots: Vec<String> = (first..end).map(|slot| slot.to_string()).collect();
                let mut command = vec!["CLUSTER", "ADDSLOTS"];
                command.extend(slots.iter().map(String::as_str));
                assert_eq!(node.command(&command), "OK");
            }
            for other in &self.nodes[..number] {
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        eventually("all nodes know each other", || {
            let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
            self.nodes
                .iter()
                .all(|node| node.command(&["CLUSTER", "INFO"]).contains(&known))
        });
    }

    fn wait_for_agreement(&self) {
        eventually("all nodes agree", || {
            self.nodes
                .iter()
                .all(|node| node.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        eventually("all replicas follow", || {
            let replicas = &self.nodes[self.primaries..];
            let mut states = replicas.iter().map(|node| node.command(&["INFO", "replication"]));
            states.all(|state| state.contains("master_link_status:up"))
        });
    }

    /// The slots that a primary has at the start.
    fn share(&self, primary: usize) -> (u16, u16) {
        let border = |number: usize| (usize::from(SLOTS) * number / self.primaries) as u16;
        (border(primary), border(primary + 1))
    }

    /// The primary that has had the slot at the start.
    pub fn owner(&self, slot: u16) -> usize {
        let has_slot = |primary: &usize| {
            let (first, end) = self.share(*primary);
            (first..end).contains(&slot)
        };
        (0..self.primaries).find(has_slot).unwrap()
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes[..self.primaries].iter().map(RedisServer::url).collect()
    }

    /// The name that a node has in the cluster.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }

    /// The slot of a key, as any of the servers sees it.
    pub fn slot(&self, key: &str) -> u16 {
        let ask = |node: &RedisServer| {
            let asked = node.try_command(&["CLUSTER", "KEYSLOT", key], Duration::from_secs(1));
            asked.ok()?.trim_start_matches(':').parse().ok()
        };
        self.nodes.iter().rev().find_map(ask).expect("a node answers")
    }
}

fn start_node() -> RedisServer {
    let arguments = [
        ["--cluster-enabled", "yes"],
        ["--cluster-config-file", "nodes.conf"],
        ["--cluster-node-timeout", "1500"],
        ["--cluster-require-full-coverage", "no"],
        ["--cluster-migration-barrier", "100"],
        ["--repl-diskless-sync-delay", "0"],
    ];
    RedisServer::start_with(Setup {
        arguments: arguments.iter().flatten().map(|word| (*word).to_owned()).collect(),
        file: Some(("nodes.conf", String::new())),
        has_bus: true,
        ..Setup::default()
    })
}

/// Blocks the thread until it is so.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + AGREEMENT;
    while !condition() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
