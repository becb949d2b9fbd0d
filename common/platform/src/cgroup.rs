//! What a Linux control group leaves of its memory limit, version 1 and version 2.
//!
//! `/proc/self/cgroup` names this process's group in each hierarchy, `/proc/self/mountinfo` where
//! the hierarchies are mounted (and which part of each: a container may see only its own branch).
//! A limit of any parent holds for the group as well, so every level up to the mount is read. The
//! files come through a function, so that tests hand in literal contents.

use std::path::{Path, PathBuf};

/// A version 1 group without a limit reports the largest multiple of the page size in an `i64`;
/// nothing that large is a limit.
const V1_UNLIMITED_BYTES: u64 = 1 << 60;

/// The level of the hierarchy that leaves the least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes still free below the limit, memory that can be reclaimed counted as free.
    pub(crate) free_bytes: u64,
    /// The limit itself.
    pub(crate) limit_bytes: u64,
    /// Directory of the group that sets it.
    pub(crate) group: PathBuf,
}

/// File names and their meaning in one version of control groups.
struct Version {
    /// What its line in `/proc/self/cgroup` lists; version 2 lists no controller.
    controller: &'static str,
    /// Any of these limits holds; version 2 throttles a group above `memory.high`.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Key in `memory.stat`: file pages not used lately, which the kernel drops when asked for more.
    reclaimable: &'static str,
}

const V1: Version = Version {
    controller: "memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Version = Version {
    controller: "",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: "inactive_file",
};

/// One mounted hierarchy that accounts for memory.
struct Hierarchy {
    version: &'static Version,
    /// What part of the hierarchy is visible at `mount`.
    root: PathBuf,
    mount: PathBuf,
}

/// The tightest memory limit over this process, or `None` where there is none or no cgroups.
/// `read` returns a file's text, or `None` if it cannot be read.
pub(crate) fn memory_limit(read: &dyn Fn(&Path) -> Option<String>) -> Option<Limit> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    mounts
        .lines()
        .filter_map(hierarchy)
        .filter_map(|hierarchy| {
            let group = group_path(&groups, hierarchy.version)?;
            tightest_level(&hierarchy, &group, read)
        })
        .min_by_key(|limit| limit.free_bytes)
}

/// A line of mountinfo as a hierarchy that accounts for memory, if it is one: `36 25 0:30 ROOT
/// MOUNT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS`.
fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (unescape(left.next()?), unescape(left.next()?));
    let mut right = right.split(' ');
    let file_system = right.next()?;
    let mut super_options = right.nth(1).unwrap_or_default().split(',');
    let version = match file_system {
        "cgroup2" => &V2,
        "cgroup" if super_options.any(|option| option == "memory") => &V1,
        _ => return None,
    };
    Some(Hierarchy { version, root, mount })
}

/// The process's group in the hierarchy of this version; lines are `NUMBER:CONTROLLERS:PATH`.
fn group_path(groups: &str, version: &Version) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let matches = controllers.split(',').any(|controller| controller == version.controller);
        matches.then(|| PathBuf::from(path))
    })
}

/// The level between the group and the mount that leaves the least memory.
fn tightest_level(
    hierarchy: &Hierarchy,
    group: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<Limit> {
    // A group outside the visible branch (or named with `..`) is read as the mount's own root.
    let below = group.strip_prefix(&hierarchy.root).unwrap_or(Path::new(""));
    let plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let leaf = if plain { hierarchy.mount.join(below) } else { hierarchy.mount.clone() };
    leaf.ancestors()
        .take_while(|level| level.starts_with(&hierarchy.mount))
        .filter_map(|level| level_limit(hierarchy.version, level, read))
        .min_by_key(|limit| limit.free_bytes)
}

/// What one group leaves of its own limit.
fn level_limit(
    version: &Version,
    group: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<Limit> {
    let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
    let limit_bytes = version
        .limits
        .iter()
        .filter_map(|name| number(name)) // "max" is no number: no limit.
        .filter(|limit| *limit < V1_UNLIMITED_BYTES)
        .min()?;
    let used = number(version.usage).unwrap_or(0);
    let reclaimable = read(&group.join("memory.stat"))
        .and_then(|stat| stat_value(&stat, version.reclaimable))
        .unwrap_or(0);
    let free_bytes = limit_bytes.saturating_sub(used.saturating_sub(reclaimable));
    Some(Limit { free_bytes, limit_bytes, group: group.to_owned() })
}

/// A value of `memory.stat`, whose lines are `KEY VALUE`.
fn stat_value(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Undoes the octal escapes of mountinfo (`\040` is a space).
fn unescape(field: &str) -> PathBuf {
    let mut text = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                text.push(char::from(byte));
                rest = &after[3..];
            }
            _ => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const V2_MOUNT: &str = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const V1_MOUNT: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";

    fn limit_with(files: &[(&str, &str)]) -> Option<Limit> {
        let files: BTreeMap<&Path, &str> =
            files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        memory_limit(&|path| files.get(path).map(|text| (*text).to_owned()))
    }

    fn limit(free_bytes: u64, limit_bytes: u64, group: &str) -> Option<Limit> {
        Some(Limit { free_bytes, limit_bytes, group: PathBuf::from(group) })
    }

    #[test]
    fn version_2_counts_reclaimable_file_pages_as_free() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "0::/worker.service\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/worker.service/memory.max", "1000\n"),
            ("/sys/fs/cgroup/worker.service/memory.current", "700\n"),
            ("/sys/fs/cgroup/worker.service/memory.stat", "anon 400\ninactive_file 250\n"),
        ]);
        assert_eq!(found, limit(550, 1000, "/sys/fs/cgroup/worker.service"));
    }

    #[test]
    fn a_parent_with_less_room_decides() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "0::/user/app\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/user/app/memory.max", "max\n"),
            ("/sys/fs/cgroup/user/app/memory.current", "10\n"),
            ("/sys/fs/cgroup/user/memory.max", "1000\n"),
            ("/sys/fs/cgroup/user/memory.current", "900\n"),
        ]);
        assert_eq!(found, limit(100, 1000, "/sys/fs/cgroup/user"));
    }

    #[test]
    fn the_throttling_limit_of_version_2_counts_too() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "0::/a\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/memory.high", "800\n"),
            ("/sys/fs/cgroup/a/memory.current", "100\n"),
        ]);
        assert_eq!(found, limit(700, 800, "/sys/fs/cgroup/a"));
    }

    #[test]
    fn version_1_is_found_among_other_controllers() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/pod/one\n1:cpu,cpuacct:/\n0::/\n"),
            ("/proc/self/mountinfo", V1_MOUNT),
            ("/sys/fs/cgroup/memory/pod/one/memory.limit_in_bytes", "2000\n"),
            ("/sys/fs/cgroup/memory/pod/one/memory.usage_in_bytes", "1500\n"),
            (
                "/sys/fs/cgroup/memory/pod/one/memory.stat",
                "inactive_file 7\ntotal_inactive_file 600\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(found, limit(1100, 2000, "/sys/fs/cgroup/memory/pod/one"));
    }

    #[test]
    fn a_container_sees_its_own_branch_at_the_mount() {
        let mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = limit_with(&[
            ("/proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("/proc/self/mountinfo", mount),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n"),
        ]);
        assert_eq!(found, limit(200, 300, "/sys/fs/cgroup/memory"));
    }

    #[test]
    fn a_group_outside_the_visible_branch_reads_the_mount() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/memory.max", "300\n"),
        ]);
        assert_eq!(found, limit(300, 300, "/sys/fs/cgroup"));
    }

    #[test]
    fn usage_above_the_limit_leaves_nothing() {
        let found = limit_with(&[
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/memory.max", "300\n"),
            ("/sys/fs/cgroup/memory.current", "301\n"),
        ]);
        assert_eq!(found, limit(0, 300, "/sys/fs/cgroup"));
    }

    #[test]
    fn without_limits_or_files_there_is_none() {
        assert_eq!(limit_with(&[]), None);
        assert_eq!(limit_with(&[("/proc/self/cgroup", "0::/\n")]), None);
        let unlimited = [
            ("/proc/self/cgroup", "4:memory:/\n0::/\n"),
            ("/proc/self/mountinfo", V1_MOUNT),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(limit_with(&unlimited), None);
        let garbage = [
            ("/proc/self/cgroup", "::\n0\n\u{fffd}:memory\n"),
            (
                "/proc/self/mountinfo",
                "1 2 3 - cgroup2\n- -\n / - \n\\9 \\ \\04 a b - cgroup2 x y\n",
            ),
        ];
        assert_eq!(limit_with(&garbage), None);
    }

    #[test]
    fn mount_points_with_spaces_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134c\\"), PathBuf::from("/a b\\c\\"));
    }
}
