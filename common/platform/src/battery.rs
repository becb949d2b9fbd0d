//! The device's battery, where the system tells of one in files, as Linux and Android do.

use std::path::Path;

/// Where it tells of its power supplies: a directory for each.
const SUPPLIES: &str = "/sys/class/power_supply";

/// What is left in the device's batteries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Battery {
    /// Of what they hold when full; the mean if there are several.
    pub percent: u8,
    /// Whether what is left gets less.
    pub draining: bool,
    /// Whether it gets more.
    pub filling: bool,
}

/// The device's batteries; `None` if it has none, or does not tell.
pub fn battery() -> Option<Battery> {
    read(Path::new(SUPPLIES))
}

fn read(supplies: &Path) -> Option<Battery> {
    let batteries: Vec<Battery> = std::fs::read_dir(supplies)
        .ok()?
        .filter_map(|supply| one(&|name| file(&supply.as_ref().ok()?.path().join(name))))
        .collect();
    let sum: usize = batteries.iter().map(|battery| usize::from(battery.percent)).sum();
    let percent = sum.checked_div(batteries.len())?;
    Some(Battery {
        percent: percent as u8, // A mean of such numbers.
        draining: batteries.iter().any(|battery| battery.draining),
        filling: batteries.iter().any(|battery| battery.filling),
    })
}

fn file(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The supply with these files, if it is a battery of the device itself: those of mice have the scope `Device`.
fn one(text: &dyn Fn(&str) -> Option<String>) -> Option<Battery> {
    if text("type")? != "Battery" || text("scope").is_some_and(|scope| scope == "Device") {
        return None;
    }
    let percent = text("capacity")?.parse().ok().filter(|percent| *percent <= 100)?;
    let status = text("status")?;
    Some(Battery { percent, draining: status == "Discharging", filling: status == "Charging" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of supplies with these types, scopes, capacities and states.
    fn found(supplies: &[[&str; 4]]) -> Option<Battery> {
        let directory = tempfile::tempdir().expect("a temporary folder");
        for (index, values) in supplies.iter().enumerate() {
            let supply = directory.path().join(format!("supply{index}"));
            std::fs::create_dir(&supply).expect("made");
            let files = ["type", "scope", "capacity", "status"].into_iter().zip(values);
            for (name, value) in files.filter(|(_, value)| !value.is_empty()) {
                std::fs::write(supply.join(name), format!("{value}\n")).expect("written");
            }
        }
        read(directory.path())
    }

    #[test]
    fn batteries_of_the_device_count() {
        let phone = ["Battery", "", "40", "Discharging"];
        let mouse = ["Battery", "Device", "3", "Discharging"];
        let charger = ["Mains", "", "", ""];
        let expected = Some(Battery { percent: 40, draining: true, filling: false });
        assert_eq!(found(&[charger, phone, mouse]), expected);
        let second = ["Battery", "System", "100", "Not charging"];
        let expected = Some(Battery { percent: 70, draining: true, filling: false });
        assert_eq!(found(&[phone, second]), expected);
        let full = ["Battery", "", "100", "Full"];
        let expected = Some(Battery { percent: 100, draining: false, filling: false });
        assert_eq!(found(&[full]), expected);
        let plugged = ["Battery", "", "3", "Charging"];
        let expected = Some(Battery { percent: 3, draining: false, filling: true });
        assert_eq!(found(&[plugged]), expected);
    }

    #[test]
    fn what_is_none_or_says_nonsense_does_not() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[["Mains", "", "", ""]]), None);
        assert_eq!(found(&[["Battery", "", "101", "Discharging"]]), None);
        assert_eq!(found(&[["Battery", "", "x", "Discharging"]]), None);
        assert_eq!(found(&[["Battery", "", "50", ""]]), None);
        assert_eq!(read(Path::new("nowhere")), None);
    }
}
