//! Threads for curve arithmetic, which takes milliseconds of CPU time, and a fair queue.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    ops::RangeInclusive,
    sync::Arc,
    thread,
};

use ipnet::IpNet;
use tokio::{sync::oneshot, task};

use super::{mutex::Mutex, settings::check};

/// `None` for requests without an address.
type Group = Option<IpNet>;

/// Dropped if the waiter was displaced.
type Waiter = oneshot::Sender<Turn>;

const STRANGERS: usize = 0;
/// Groups with recent valid requests.
const KNOWN: usize = 1;

#[derive(Clone)]
pub(super) struct Workers(Arc<Mutex<Queue>>);

struct Queue {
    threads: usize,
    idle: usize,
    max_waiting: usize,
    classes: [Class; 2],
    next_class: usize,
}

/// Each group has one line, and the groups take turns.
#[derive(Default)]
struct Class {
    lines: HashMap<Group, VecDeque<Waiter>>,
    turns: VecDeque<Group>,
    /// The length of each line, and a random rank, so that among equal lines no kind of address is displaced first.
    lengths: BTreeSet<(usize, u64, Group)>,
    ranks: RandomState,
    waiting: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Overloaded;

/// Dropping it passes the thread to the next waiter.
pub(super) struct Turn(Workers);

struct Place<'a> {
    workers: &'a Workers,
    class: usize,
    group: Group,
}

impl Workers {
    const THREADS: RangeInclusive<usize> = 1..=1_024;
    const QUEUED: RangeInclusive<usize> = 0..=1 << 16;

    /// `name` is the setting. By default, one core is left for other requests.
    pub(super) fn configured(name: &str, threads: Option<usize>, max_queued: Option<usize>) -> Result<Self, String> {
        let threads = threads.unwrap_or_else(|| {
            let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
            (cores - 1).clamp(*Self::THREADS.start(), *Self::THREADS.end())
        });
        check(name, threads, &Self::THREADS)?;
        let max_queued = max_queued.unwrap_or(64 * threads);
        check("max_queued", max_queued, &Self::QUEUED)?;
        Ok(Self::new(threads, max_queued))
    }

    fn new(threads: usize, max_waiting: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            threads,
            idle: threads,
            max_waiting,
            classes: Default::default(),
            next_class: 0,
        })))
    }

    /// Running or waiting.
    pub(super) fn capacity(&self) -> usize {
        let queue = self.0.lock();
        queue.threads + queue.max_waiting
    }

    pub(super) fn is_half_full(&self) -> bool {
        let queue = self.0.lock();
        2 * (queue.threads - queue.idle + queue.waiting()) >= queue.threads + queue.max_waiting
    }

    /// In a full queue, a newcomer displaces the last waiter of the longest line that is longer than its own would be.
    /// Half of the queue is reserved for known groups: below it, they displace any stranger, and strangers cannot
    /// displace them.
    pub(super) async fn turn(&self, group: Group, is_known: bool) -> Result<Turn, Overloaded> {
        let (place, turn) = {
            let mut queue = self.0.lock();
            if queue.idle > 0 {
                queue.idle -= 1;
                return Ok(Turn(self.clone()));
            }
            let class = if is_known { KNOWN } else { STRANGERS };
            let turn = queue.enter(class, group)?;
            let place = Place {
                workers: self,
                class,
                group,
            };
            (place, turn)
        };
        // If this future is dropped, the receiver is dropped before the place, which removes closed waiters.
        let turn = turn.await.map_err(|_| Overloaded);
        drop(place);
        turn
    }

    fn pass_on(&self) {
        let next = self.0.lock().next();
        if let Some(waiter) = next {
            // A cancelled waiter drops its turn, which passes it to the next one.
            let _ = waiter.send(Turn(self.clone()));
        }
    }
}

impl Queue {
    fn waiting(&self) -> usize {
        self.classes.iter().map(|class| class.waiting).sum()
    }

    fn enter(&mut self, class: usize, group: Group) -> Result<oneshot::Receiver<Turn>, Overloaded> {
        if self.waiting() >= self.max_waiting {
            let line = self.classes[class].lines.get(&group);
            let victims = self.victims(class, line.map_or(0, VecDeque::len))?;
            self.classes[victims].displace();
        }
        let (waiter, turn) = oneshot::channel();
        self.classes[class].push(group, waiter);
        Ok(turn)
    }

    fn victims(&self, class: usize, length: usize) -> Result<usize, Overloaded> {
        let (reserved, known) = (self.max_waiting / 2, self.classes[KNOWN].waiting);
        if class == KNOWN && known < reserved {
            return Ok(STRANGERS);
        }
        // The longest line must exceed the newcomer's line by at least two. Otherwise, the displaced waiter could
        // displace the newcomer in turn, and no waiter would ever get a thread.
        let mut shortest = [length + 2; 2];
        if class == STRANGERS {
            shortest[KNOWN] = if known > reserved { length + 1 } else { usize::MAX };
        }
        let longest = [STRANGERS, KNOWN].map(|class| self.classes[class].longest());
        let victims = [STRANGERS, KNOWN]
            .into_iter()
            .filter(|class| longest[*class] >= shortest[*class]);
        victims.max_by_key(|class| longest[*class]).ok_or(Overloaded)
    }

    /// Marks the thread as idle without a waiter. The classes alternate while both have waiters.
    fn next(&mut self) -> Option<Waiter> {
        let first = self.next_class;
        for class in [first, 1 - first] {
            if let Some(waiter) = self.classes[class].pop() {
                self.next_class = 1 - class;
                return Some(waiter);
            }
        }
        self.idle += 1;
        None
    }
}

impl Class {
    fn push(&mut self, group: Group, waiter: Waiter) {
        if !self.lines.contains_key(&group) {
            self.turns.push_back(group);
        }
        self.change(group, |line| line.push_back(waiter));
    }

    fn pop(&mut self) -> Option<Waiter> {
        let group = self.turns.pop_front()?;
        let waiter = self.change(group, VecDeque::pop_front);
        if self.lines.contains_key(&group) {
            self.turns.push_back(group);
        }
        waiter
    }

    fn longest(&self) -> usize {
        self.lengths.last().map_or(0, |(length, ..)| *length)
    }

    fn displace(&mut self) {
        if let Some(&(.., group)) = self.lengths.last() {
            drop(self.change(group, VecDeque::pop_back));
            self.end_turns(group);
        }
    }

    fn remove_closed(&mut self, group: Group) {
        if self.lines.contains_key(&group) {
            self.change(group, |line| line.retain(|waiter| !waiter.is_closed()));
            self.end_turns(group);
        }
    }

    fn end_turns(&mut self, group: Group) {
        if !self.lines.contains_key(&group) {
            self.turns.retain(|other| *other != group);
        }
    }

    fn change<T>(&mut self, group: Group, change: impl FnOnce(&mut VecDeque<Waiter>) -> T) -> T {
        let rank = self.ranks.hash_one(group);
        let mut line = self.lines.remove(&group).unwrap_or_default();
        self.lengths.remove(&(line.len(), rank, group));
        self.waiting -= line.len();
        let changed = change(&mut line);
        self.waiting += line.len();
        if !line.is_empty() {
            self.lengths.insert((line.len(), rank, group));
            self.lines.insert(group, line);
        }
        changed
    }
}

impl Turn {
    /// The thread stays in use until the work is done, even if the request is cancelled.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Overloaded> {
        let work = task::spawn_blocking(move || {
            let done = work();
            drop(self);
            done
        });
        // Only fails if the work panics, which it does not.
        work.await.map_err(|_| Overloaded)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.workers.0.lock().classes[self.class].remove_closed(self.group);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, pin::Pin, sync::mpsc, task::Poll};

    use futures_util::FutureExt;
    use tokio_test::task::{Spawn, spawn};

    use super::*;

    type Waiting = Spawn<Pin<Box<dyn Future<Output = Result<Turn, Overloaded>> + Send>>>;

    /// SplitMix64 (Steele, Lea and Flood 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((u128::from(mixed ^ (mixed >> 31)) * bound as u128) >> 64) as usize
        }
    }

    fn for_many(cases: usize, property: impl Fn(&mut Random)) {
        for _ in 0..cases {
            let start = RandomState::new().hash_one(0_u8);
            println!("Random({start:#x})");
            property(&mut Random(start));
        }
    }

    fn group(number: u8) -> Group {
        Some(IpNet::from(IpAddr::from([192, 0, 2, number])))
    }

    fn request(workers: &Workers, number: u8, is_known: bool) -> Waiting {
        let workers = workers.clone();
        spawn(async move { workers.turn(group(number), is_known).await }.boxed())
    }

    fn enter(workers: &Workers, number: u8, is_known: bool) -> Waiting {
        let mut waiting = request(workers, number, is_known);
        assert!(waiting.poll().is_pending());
        waiting
    }

    fn finds_no_place(workers: &Workers, number: u8, is_known: bool) -> bool {
        has_lost(&mut request(workers, number, is_known))
    }

    fn busy(max_waiting: usize) -> (Workers, Turn) {
        let workers = Workers::new(1, max_waiting);
        let turn = workers.turn(None, false).now_or_never().unwrap().ok().unwrap();
        (workers, turn)
    }

    fn served<T: Copy>(mut turn: Turn, mut waiting: Vec<(T, Waiting)>) -> Vec<T> {
        let mut order = Vec::new();
        loop {
            drop(turn);
            let next = waiting.iter_mut().position(|(_, waiting)| waiting.is_woken());
            let Some(next) = next else { return order };
            let (name, mut waiting) = waiting.remove(next);
            let Poll::Ready(Ok(next)) = waiting.poll() else {
                panic!("a waiter lost its place");
            };
            order.push(name);
            turn = next;
        }
    }

    fn has_lost(waiting: &mut Waiting) -> bool {
        matches!(waiting.poll(), Poll::Ready(Err(Overloaded)))
    }

    #[tokio::test]
    async fn groups_take_turns() {
        let (workers, turn) = busy(9);
        let order = [1, 1, 1, 2, 2, 3];
        let waiting = order.map(|number| (number, enter(&workers, number, false)));
        assert_eq!(served(turn, waiting.into()), [1, 2, 3, 1, 2, 1]);
        assert!(workers.turn(None, false).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_newcomer_takes_the_last_place_of_the_longest_line_and_a_longer_line_gets_none() {
        let (workers, turn) = busy(4);
        let mut of_one: Vec<_> = (0..4).map(|_| enter(&workers, 1, false)).collect();
        assert!(finds_no_place(&workers, 1, false));
        let of_two = [enter(&workers, 2, false), enter(&workers, 2, false)];
        assert!(has_lost(&mut of_one[3]) && has_lost(&mut of_one[2]));
        assert!(finds_no_place(&workers, 1, false) && finds_no_place(&workers, 2, false));
        of_one.truncate(2);
        let later = [3, 4].map(|number| (number, enter(&workers, number, false)));
        let waiting = of_one.into_iter().map(|waiting| (1, waiting));
        let waiting = waiting.chain(of_two.map(|waiting| (2, waiting))).chain(later);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.retain_mut(|(_, waiting)| !has_lost(waiting));
        // Each group has one waiter now, so no group displaces another.
        assert!(finds_no_place(&workers, 5, false));
        assert_eq!(served(turn, waiting), [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn known_groups_and_strangers_have_half_of_the_places_and_of_the_turns_each() {
        for is_first_known in [false, true] {
            let (workers, turn) = busy(8);
            let mut first: Vec<_> = (0..8).map(|number| enter(&workers, number, is_first_known)).collect();
            let second: Vec<_> = (10..14)
                .map(|number| enter(&workers, number, !is_first_known))
                .collect();
            assert!(finds_no_place(&workers, 14, !is_first_known));
            assert!(finds_no_place(&workers, 9, is_first_known));
            first.retain_mut(|waiting| !has_lost(waiting));
            assert_eq!(first.len(), 4);
            let waiting = first.into_iter().map(|waiting| (is_first_known, waiting));
            let waiting = waiting.chain(second.into_iter().map(|waiting| (!is_first_known, waiting)));
            let mut order = served(turn, waiting.collect());
            assert!(order.as_chunks::<2>().0.iter().all(|[first, second]| first != second));
            order.sort_unstable();
            assert_eq!(order, [[false; 4], [true; 4]].concat());
        }
    }

    #[tokio::test]
    async fn it_is_half_full_by_proofs_that_are_verified_or_wait() {
        let workers = Workers::new(1, 0);
        assert!(!workers.is_half_full());
        let (workers, turn) = busy(4);
        let mut waiting = vec![enter(&workers, 1, false)];
        assert!(!workers.is_half_full());
        waiting.push(enter(&workers, 1, false));
        assert!(workers.is_half_full());
        waiting.pop();
        assert!(!workers.is_half_full());
        drop((turn, waiting));
    }

    #[tokio::test]
    async fn work_blocks_no_thread_of_the_runtime() {
        let workers = Workers::new(1, 1);
        let (release, released) = mpsc::channel();
        let turn = workers.turn(None, false).await.ok().unwrap();
        let first = tokio::spawn(turn.run(move || released.recv().unwrap()));
        let mut second = enter(&workers, 1, false);
        assert!(finds_no_place(&workers, 1, false));
        release.send(1).unwrap();
        assert_eq!(first.await.unwrap().unwrap(), 1);
        assert_eq!((&mut second).await.ok().unwrap().run(|| 2).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn cancelled_work_keeps_its_thread_until_it_is_done_and_a_cancelled_waiter_leaves_its_place() {
        let workers = Workers::new(1, 1);
        let (release, released) = mpsc::channel::<()>();
        let turn = workers.turn(None, false).await.ok().unwrap();
        let running = tokio::spawn(turn.run(move || released.recv().is_err()));
        tokio::task::yield_now().await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        drop(enter(&workers, 1, false));
        let next = enter(&workers, 2, false);
        drop(release);
        drop(next.await.ok().unwrap());
        // A turn granted to a waiter that was never polled again passes to the next one.
        let turn = workers.turn(None, false).now_or_never().unwrap().ok().unwrap();
        let waiting = enter(&workers, 1, false);
        drop(turn);
        drop(waiting);
        assert!(workers.turn(None, false).now_or_never().is_some());
    }

    fn assert_consistent(class: &Class) {
        assert!(class.lines.values().all(|line| !line.is_empty()));
        let mut turns: Vec<_> = class.turns.iter().collect();
        let mut groups: Vec<_> = class.lines.keys().collect();
        turns.sort_unstable();
        groups.sort_unstable();
        assert_eq!(turns, groups);
        assert_eq!(class.lines.values().map(VecDeque::len).sum::<usize>(), class.waiting);
        let lengths: HashMap<_, _> = class
            .lengths
            .iter()
            .map(|&(length, _, group)| (group, length))
            .collect();
        assert_eq!(lengths.len(), class.lengths.len());
        assert_eq!(
            lengths,
            class.lines.iter().map(|(group, line)| (*group, line.len())).collect()
        );
    }

    /// A newcomer is rejected only if its line is about as long as the longest line that could make room.
    #[test]
    fn the_queue_stays_within_its_bounds_and_forgets_no_waiter() {
        for_many(300, |random| {
            let (threads, max_waiting) = (1 + random.below(3), random.below(9));
            let workers = Workers::new(threads, max_waiting);
            let (mut waiting, mut turns): (Vec<Waiting>, Vec<Turn>) = (Vec::new(), Vec::new());
            for _ in 0..80 {
                match random.below(4) {
                    0 if !turns.is_empty() => drop(turns.swap_remove(random.below(turns.len()))),
                    1 if !waiting.is_empty() => drop(waiting.swap_remove(random.below(waiting.len()))),
                    _ => {
                        let (number, is_known) = (random.below(4) as u8, random.below(2) == 1);
                        let (group, mut newcomer) = (group(number), request(&workers, number, is_known));
                        let queue = workers.0.lock();
                        let (reserved, known) = (max_waiting / 2, queue.classes[KNOWN].waiting);
                        let own = &queue.classes[usize::from(is_known)];
                        let length = own.lines.get(&group).map_or(0, VecDeque::len);
                        let longest = own.longest();
                        let strangers = queue.classes[STRANGERS].longest();
                        drop(queue);
                        match newcomer.poll() {
                            Poll::Ready(Ok(turn)) => turns.push(turn),
                            Poll::Ready(Err(Overloaded)) => {
                                assert!(longest <= length + 1);
                                assert!(!is_known || known >= reserved && strangers <= length + 1);
                                assert!(is_known || known <= reserved || length > 0);
                            }
                            Poll::Pending => waiting.push(newcomer),
                        }
                    }
                }
                waiting.retain_mut(|waiting| match waiting.poll() {
                    Poll::Ready(Ok(turn)) => {
                        turns.push(turn);
                        false
                    }
                    Poll::Ready(Err(Overloaded)) => false,
                    Poll::Pending => true,
                });
                let queue = workers.0.lock();
                assert_eq!(queue.threads - queue.idle, turns.len());
                assert_eq!(queue.waiting(), waiting.len());
                assert!(queue.waiting() <= max_waiting && (queue.idle == 0 || waiting.is_empty()));
                queue.classes.iter().for_each(assert_consistent);
            }
        });
    }
}
