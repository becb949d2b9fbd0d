//! Whether anything but a measurement went on while it was taken: what others compute is not this machine's speed.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::options::DeviceKind;

/// Part of the time that the measuring thread may have been without a processor.
const WAITED: f64 = 0.05;
/// Part of all processors that others may have had: what any system does beside, and the grain of its counters,
/// which is a hundredth of a second.
const OTHERS: f64 = 0.15;

/// Counters at the beginning of a measurement.
pub(super) struct Watch {
    begin: Instant,
    thread: Option<Duration>,
    process: Duration,
    machine: Option<Machine>,
}

/// What the processors of this machine did since it started, all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    /// They computed, for whomever.
    busy: Duration,
    /// They could not, since their host gave them to other machines.
    stolen: Duration,
    processors: u32,
}

/// What happened during a measurement.
#[derive(Clone, Copy, Debug)]
struct Seen {
    wall: Duration,
    /// The measuring thread's time on a processor, where it never waits for anything else: `None` where it waits for a
    /// device that computes.
    thread: Option<Duration>,
    /// What others had of the processors, in seconds of one, stolen time among it; `None` where the system does not
    /// say.
    others: Option<Duration>,
    processors: u32,
}

impl Watch {
    /// It begins now, of what computes on this device.
    pub(super) fn start(device: DeviceKind) -> Watch {
        Watch {
            machine: machine(),
            process: spent(ClockId::ProcessCPUTime),
            thread: device.is_callers_processor().then(|| spent(ClockId::ThreadCPUTime)),
            begin: Instant::now(),
        }
    }

    /// Whether there was nobody else until now. To be asked on the thread that started it.
    pub(super) fn is_quiet(&self) -> bool {
        let wall = self.begin.elapsed();
        let thread = self.thread.map(|at| spent(ClockId::ThreadCPUTime).saturating_sub(at));
        let process = spent(ClockId::ProcessCPUTime).saturating_sub(self.process);
        let now = self.machine.zip(machine());
        let others = now.map(|(before, now)| {
            let busy = now.busy.saturating_sub(before.busy).saturating_sub(process);
            busy + now.stolen.saturating_sub(before.stolen)
        });
        let processors = now.map_or(1, |(_, now)| now.processors);
        Seen { wall, thread, others, processors }.is_quiet()
    }
}

impl Seen {
    /// A process that may not always run, though nobody takes its place, is as fast as it will ever be.
    fn is_quiet(&self) -> bool {
        let waited = self.wall.saturating_sub(self.thread.unwrap_or(self.wall));
        let waits = waited > self.wall.mul_f64(WAITED);
        match self.others {
            Some(others) => {
                let all = self.wall * self.processors.max(1);
                others <= all.mul_f64(OTHERS) && !(waits && others >= waited / 2)
            }
            None => !waits,
        }
    }
}

/// Time on a processor.
fn spent(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn machine() -> Option<Machine> {
    let tick =
        Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
    parse(&std::fs::read_to_string("/proc/stat").ok()?, tick)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn machine() -> Option<Machine> {
    None
}

/// `/proc/stat`, whose first line has ticks of all processors: user, nice, system, idle, waiting for a disk,
/// interrupts of two kinds, stolen.
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
fn parse(stat: &str, tick: Duration) -> Option<Machine> {
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = all.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect();
    let [user, nice, system, _idle, _disk, hard, soft, stolen, ..] = ticks[..] else { return None };
    let nanoseconds = u64::try_from(tick.as_nanos()).ok()?;
    let time = |ticks: u64| ticks.checked_mul(nanoseconds).map(Duration::from_nanos);
    let sum = [user, nice, system, hard, soft].into_iter().fold(0, u64::saturating_add);
    let each = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    Some(Machine { busy: time(sum)?, stolen: time(stolen)?, processors: u32::try_from(each).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn seen(wall: u64, thread: u64, others: Option<u64>, processors: u32) -> bool {
        let others = others.map(ms);
        Seen { wall: ms(wall), thread: Some(ms(thread)), others, processors }.is_quiet()
    }

    #[test]
    fn others_on_the_processors_are_noise() {
        assert!(seen(150, 150, Some(0), 2));
        assert!(seen(150, 149, Some(40), 2), "a system always does something");
        assert!(!seen(150, 149, Some(50), 2), "though they were on another processor");
        assert!(seen(150, 149, Some(300), 16), "of many, a few are others'");
        assert!(!seen(150, 75, Some(75), 16), "but not the measuring thread's");
    }

    #[test]
    fn who_may_not_run_always_is_not_disturbed_by_anybody() {
        assert!(seen(150, 38, Some(5), 2));
        assert!(!seen(150, 38, Some(80), 2));
        assert!(!seen(150, 38, None, 1), "where the system does not say, that is not known");
        assert!(seen(150, 148, None, 1));
    }

    #[test]
    fn a_thread_that_waits_for_a_device_is_not_disturbed_by_that() {
        let seen = |others: Option<u64>| {
            Seen { wall: ms(150), thread: None, others: others.map(ms), processors: 2 }.is_quiet()
        };
        assert!(seen(Some(40)) && !seen(Some(80)));
        assert!(seen(None), "what others have of a device nobody tells");
    }

    #[test]
    fn the_systems_counters_are_read_and_whatever_else_is_there_is_refused() {
        let stat =
            "cpu  100 2 30 9000 50 3 4 7 0 0\ncpu0 50 1 1 1 1 1 1 1 0 0\ncpu1 5 1\nintr 1 2\n";
        let expected = Machine { busy: ms(1390), stolen: ms(70), processors: 2 };
        assert_eq!(parse(stat, TICK), Some(expected));
        for broken in
            ["", "cpu", "cpu  1 2 3\n", "cpu  a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n"]
        {
            assert_eq!(parse(broken, TICK), None, "{broken:?}");
        }
    }

    #[test]
    fn a_thread_that_works_spends_its_time() {
        let before = spent(ClockId::ThreadCPUTime);
        let end = Instant::now() + ms(5);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        assert!(spent(ClockId::ThreadCPUTime) > before);
        let watch = Watch::start(DeviceKind::Cpu);
        let _ = watch.is_quiet(); // Whatever else this machine does.
    }
}
