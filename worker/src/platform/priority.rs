//! Work that gives way to other work of this machine.

/// How much nicer than the rest is what gives way: about a tenth of a busy core. With the nicest value it would be a
/// seventieth, in which honest work, too, would run into its deadlines.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICER: i32 = 10;
/// The nicest value.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICEST: i32 = 19;

/// Has a thread, or the calling one, give way.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn lower(thread: Option<rustix::process::Pid>) {
    use rustix::process::{getpriority_process, setpriority_process};
    if let Ok(before) = getpriority_process(thread) {
        // What is refused changes nothing but who waits.
        setpriority_process(thread, (before + NICER).min(NICEST)).ok();
    }
}

/// Has the calling thread give way to others from now on, as far as the system knows of that. It cannot be taken back.
///
/// On Linux a thread has a priority of its own, which by POSIX only a process has; elsewhere nothing changes.
pub fn give_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    lower(None);
}

/// Has all threads that this process has now, and those that they start, give way.
pub fn process_gives_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
            lower(Some(id));
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_and_others_do_not() {
        let own = || rustix::process::getpriority_process(None).expect("a priority");
        let before = own();
        let lowered = std::thread::spawn(move || {
            give_way();
            own()
        });
        assert_eq!(lowered.join().expect("it ran"), (before + NICER).min(NICEST));
        assert_eq!(own(), before);
    }
}
