//! Work that gives way to other work of this machine.
//!
//! How far is counted from a process that does not give way: threads and processes begin with what started them has,
//! so that one that gives way already would have its own give way twice.

/// How much nicer than the rest is what gives way: about a tenth of a busy core. With the nicest value it would be a
/// seventieth, in which honest work, too, would run into its deadlines.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICER: i32 = 10;
/// The nicest value.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICEST: i32 = 19;

/// What a thread has that gives way to a process, whose nice value this is.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn lowered(own: i32, process: i32) -> i32 {
    own.max((process + NICER).min(NICEST))
}

/// Has a thread, or the calling one, give way to a process.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn lower(thread: Option<rustix::process::Pid>, process: Option<rustix::process::Pid>) {
    use rustix::process::{getpriority_process, setpriority_process};
    if let (Ok(own), Ok(process)) = (getpriority_process(thread), getpriority_process(process)) {
        // What is refused changes nothing but who waits.
        setpriority_process(thread, lowered(own, process)).ok();
    }
}

/// Has the calling thread give way to others from now on, as far as the system knows of that. It cannot be taken back.
///
/// On Linux a thread has a priority of its own, which by POSIX only a process has; elsewhere nothing changes.
pub fn give_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    lower(None, Some(rustix::process::getpid())); // The priority of its first thread.
}

/// Has all threads that this process has now, and those that they start, give way to the process that started it.
pub fn process_gives_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
            lower(Some(id), rustix::process::getppid());
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_once_and_others_do_not() {
        let own = || rustix::process::getpriority_process(None).expect("a priority");
        let before = own();
        let lowered = std::thread::spawn(move || {
            give_way();
            let once = own();
            give_way();
            (once, own())
        });
        let expected = (before + NICER).min(NICEST);
        assert_eq!(lowered.join().expect("it ran"), (expected, expected));
        assert_eq!(own(), before);
    }

    #[test]
    fn who_was_started_by_what_gives_way_gives_way_no_further() {
        for (own, process, expected) in
            [(0, 0, 10), (10, 0, 10), (15, 5, 15), (19, 0, 19), (15, 15, 19)]
        {
            assert_eq!(lowered(own, process), expected, "{own} beside {process}");
        }
    }
}
