//! Control groups: a process held to a part of a CPU, or to some memory. Versions 1 and 2.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const ROOT: &str = "/sys/fs/cgroup";
/// Period in which a CPU quota holds (microseconds): the default of the system and of containers.
const PERIOD_US: u64 = 100_000;

/// A control group of our own; removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// A group that may use this part of one CPU.
    ///
    /// # Errors
    /// Why there can be none here, in words.
    pub fn cpu(share: f64) -> Result<Self, String> {
        let quota = (PERIOD_US as f64 * share) as u64;
        if v2() {
            let group = Self::make(Path::new(ROOT), "cpu")?;
            group.write("cpu.max", &format!("{quota} {PERIOD_US}"))?;
            return Ok(group);
        }
        let group = Self::make(&Path::new(ROOT).join("cpu"), "cpu")?;
        group.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
        group.write("cpu.cfs_quota_us", &quota.to_string())?;
        Ok(group)
    }

    /// A group that may use so many bytes.
    ///
    /// # Errors
    /// Why there can be none here, in words.
    pub fn memory(bytes: u64) -> Result<Self, String> {
        let root = Path::new(ROOT);
        let group =
            Self::make(&if v2() { root.to_owned() } else { root.join("memory") }, "memory")?;
        group.set_memory(bytes)?;
        Ok(group)
    }

    /// From now on it may use so many bytes.
    ///
    /// # Errors
    /// Why it cannot be so, in words.
    pub fn set_memory(&self, bytes: u64) -> Result<(), String> {
        let file = if v2() { "memory.max" } else { "memory.limit_in_bytes" };
        self.write(file, &bytes.to_string())
    }

    /// The file to which a process id is written to join.
    pub fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Processes of this group that the system killed for their memory.
    pub fn oom_kills(&self) -> Option<u64> {
        let text = self.read("memory.events").or_else(|| self.read("memory.oom_control"))?;
        let line = text.lines().find(|line| line.starts_with("oom_kill "))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Most bytes that the group used so far, page cache included.
    pub fn peak_bytes(&self) -> Option<u64> {
        let text = self.read("memory.peak").or_else(|| self.read("memory.max_usage_in_bytes"))?;
        text.trim().parse().ok()
    }

    /// How often the group met its limit.
    pub fn limit_hits(&self) -> Option<u64> {
        if let Some(text) = self.read("memory.failcnt") {
            return text.trim().parse().ok();
        }
        let text = self.read("memory.events")?;
        let line = text.lines().find(|line| line.starts_with("max "))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    fn make(parent: &Path, controller: &str) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if v2() {
            // Already on where the system delegates it; if it cannot be switched on, writing fails.
            let control = parent.join("cgroup.subtree_control");
            std::fs::write(control, format!("+{controller}")).ok();
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("cake-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|error| {
            format!("cannot make the control group {}: {error}", directory.display())
        })?;
        Ok(Self { directory })
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(file);
        // Opened without O_CREAT: a missing controller must not look like a file of ours.
        let write = || {
            use std::io::Write;
            std::fs::OpenOptions::new().write(true).open(&path)?.write_all(text.as_bytes())
        };
        write().map_err(|error: std::io::Error| format!("cannot write {}: {error}", path.display()))
    }

    fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.join(file)).ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Busy until the last process is reaped, which those who own them have done.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn v2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}
