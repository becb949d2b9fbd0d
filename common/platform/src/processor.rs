//! What the processor is called.

/// The file in which Linux describes its processors, one paragraph each.
const DESCRIBED: &str = "/proc/cpuinfo";
/// The lines of it that tell a model from others, on x86 and on ARM.
const FIELDS: [&str; 6] =
    ["model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part"];

/// The processor's model, as far as the system tells: machines with the same one are equally fast at the same things.
/// One line, and not empty.
pub fn processor() -> String {
    let described = std::fs::read_to_string(DESCRIBED).ok().and_then(|text| model(&text));
    described.unwrap_or_else(|| {
        let brand = sysinfo::System::new_with_specifics(
            sysinfo::RefreshKind::nothing().with_cpu(sysinfo::CpuRefreshKind::nothing()),
        );
        let brand = brand.cpus().first().map_or("", |cpu| cpu.brand()).trim();
        if brand.is_empty() { std::env::consts::ARCH.to_owned() } else { one_line(brand) }
    })
}

/// What the first paragraph says in [`FIELDS`], in their order; a hypervisor may leave little of a name, and the numbers
/// stay.
fn model(described: &str) -> Option<String> {
    let lines = || described.lines().take_while(|line| !line.trim().is_empty());
    let value = |field: &&str| {
        let of = |line: &str| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == *field).then(|| one_line(value))
        };
        lines().find_map(of)
    };
    let values: Vec<String> = FIELDS.iter().filter_map(value).collect();
    (!values.is_empty()).then(|| values.join(" "))
}

/// Without what a line or a terminal would not take.
fn one_line(text: &str) -> String {
    text.trim().chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_its_name_and_its_numbers() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n\
                   model name\t: AMD EPYC\nstepping\t: 1\ncpu MHz\t\t: 2445.4\n\nprocessor\t: 1\nmodel\t: 2\n";
        assert_eq!(model(x86).as_deref(), Some("AMD EPYC 25 1 1"));
        let arm = "processor\t: 0\nBogoMIPS\t: 38.4\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n";
        assert_eq!(model(arm).as_deref(), Some("0x41 0xd0b"));
        assert_eq!(model(""), None);
    }

    #[test]
    fn this_one_has_a_name() {
        let name = processor();
        assert!(!name.is_empty() && name.lines().count() == 1, "{name:?}");
    }
}
