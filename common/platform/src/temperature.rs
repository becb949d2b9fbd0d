//! How warm the device's processor is, where the system tells in files, as Linux and Android do.

use std::path::{Path, PathBuf};

/// Where it tells of devices by their classes.
const CLASSES: &str = "/sys/class";
/// What sensors of processors are called, or a part of it: of Intel, of AMD, of boards and of phones.
const PROCESSORS: [&str; 8] =
    ["cpu", "x86_pkg_temp", "coretemp", "k10temp", "zenpower", "soc", "mtktscpu", "tsens"];
/// Degrees that a sensor may show: others are broken, or something else than degrees.
const USABLE: std::ops::RangeInclusive<i64> = 1..=150;

/// The warmest of the processor's sensors, in whole °C, or of the system's zones if none is called the processor's;
/// `None` if there is none, or none tells.
pub fn temperature() -> Option<u8> {
    read(Path::new(CLASSES))
}

fn read(classes: &Path) -> Option<u8> {
    let named = |path: &Path, name: &str| file(&path.join(name)).map(|it| it.to_ascii_lowercase());
    let zones = beneath(&classes.join("thermal"), "thermal_zone").into_iter();
    let zones = zones.filter_map(|zone| Some((named(&zone, "type")?, zone.join("temp"))));
    let mut sensors: Vec<(String, PathBuf)> = zones.collect();
    for chip in beneath(&classes.join("hwmon"), "hwmon") {
        let Some(name) = named(&chip, "name") else { continue };
        let inputs = beneath(&chip, "temp").into_iter();
        let inputs = inputs.filter(|input| input.to_string_lossy().ends_with("_input"));
        sensors.extend(inputs.map(|input| (name.clone(), input)));
    }
    let warmest = |is_one: &dyn Fn(&str) -> bool| {
        let ones = sensors.iter().filter(|(name, _)| is_one(name));
        ones.filter_map(|(_, input)| degrees(input)).max()
    };
    let of_processor = warmest(&|name| PROCESSORS.iter().any(|part| name.contains(part)));
    // Boards have such a zone, of which nobody says what it is beside.
    of_processor.or_else(|| warmest(&|name| name == "acpitz"))
}

/// What is in a directory under names that begin so.
fn beneath(directory: &Path, prefix: &'static str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries
        .filter(move |entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()));
    named.map(|entry| entry.path()).collect()
}

/// What a sensor shows: thousandths of a degree, or degrees on some old phones.
fn degrees(input: &Path) -> Option<u8> {
    let shown: i64 = file(input)?.parse().ok()?;
    let degrees =
        if USABLE.contains(&shown) { shown } else { shown.saturating_add(500).div_euclid(1000) };
    u8::try_from(degrees).ok().filter(|_| USABLE.contains(&degrees))
}

fn file(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read where there are these files.
    fn found(files: &[(&str, &str)]) -> Option<u8> {
        let classes = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            let path = classes.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, format!("{text}\n")).expect("written");
        }
        read(classes.path())
    }

    #[test]
    fn the_warmest_sensor_of_the_processor_counts() {
        let board =
            [("thermal/thermal_zone0/type", "acpitz"), ("thermal/thermal_zone0/temp", "27800")];
        assert_eq!(found(&board), Some(28));
        let package = [
            ("thermal/thermal_zone1/type", "x86_pkg_temp"),
            ("thermal/thermal_zone1/temp", "61000"),
        ];
        assert_eq!(found(&[board, package].concat()), Some(61));
        let chip = [
            ("hwmon/hwmon2/name", "coretemp"),
            ("hwmon/hwmon2/temp1_input", "63499"),
            ("hwmon/hwmon2/temp2_input", "63500"),
            ("hwmon/hwmon2/temp2_crit", "100000"),
        ];
        assert_eq!(found(&[&board[..], &package, &chip].concat()), Some(64));
        let disk = [("hwmon/hwmon0/name", "nvme"), ("hwmon/hwmon0/temp1_input", "70000")];
        assert_eq!(found(&disk), None);
        assert_eq!(found(&[&chip[..], &disk].concat()), Some(64));
        let phone =
            [("thermal/thermal_zone7/type", "CPU-0-0-usr"), ("thermal/thermal_zone7/temp", "45")];
        assert_eq!(found(&phone), Some(45));
    }

    #[test]
    fn what_shows_nonsense_does_not() {
        let shows = |text| {
            found(&[
                ("thermal/thermal_zone0/type", "cpu-thermal"),
                ("thermal/thermal_zone0/temp", text),
            ])
        };
        assert_eq!(shows("45300"), Some(45));
        for nonsense in
            ["", "x", "0", "-40000", "-274000", "151", "200000", "9999999999999999999999"]
        {
            assert_eq!(shows(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(shows("9223372036854775807"), None);
        assert_eq!(found(&[("thermal/thermal_zone0/type", "cpu-thermal")]), None);
        assert_eq!(read(Path::new("nowhere")), None);
    }
}
