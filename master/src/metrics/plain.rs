//! The same numbers in the format that came before OpenMetrics: what a scraper gets that does not ask for that.

/// `text`, which is OpenMetrics, in Prometheus' own format, version 0.0.4: a counter has its whole name in the lines
/// about it, and there are no lines about units and about the end.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = None; // Of the next metric, whose type follows it.
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), Some(rest)) => help = Some(rest),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    // Here a quotation mark stands for itself.
                    let help = help.replace("\\\"", "\"");
                    plain.push_str(&format!("# HELP {name}{suffix} {help}\n"));
                }
                plain.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_openmetrics_has_beyond_it_is_gone_and_counters_have_their_whole_names() {
        let text = "# HELP cake_sent_bytes Bytes \\\"sent\\\" to workers.\n\
            # TYPE cake_sent_bytes counter\n\
            # UNIT cake_sent_bytes bytes\n\
            cake_sent_bytes_total 7\n\
            # HELP cake_wait_seconds Wait.\n\
            # TYPE cake_wait_seconds histogram\n\
            # UNIT cake_wait_seconds seconds\n\
            cake_wait_seconds_sum 0.5\n\
            cake_wait_seconds_bucket{le=\"+Inf\"} 1\n\
            # EOF\n";
        let expected = "# HELP cake_sent_bytes_total Bytes \"sent\" to workers.\n\
            # TYPE cake_sent_bytes_total counter\n\
            cake_sent_bytes_total 7\n\
            # HELP cake_wait_seconds Wait.\n\
            # TYPE cake_wait_seconds histogram\n\
            cake_wait_seconds_sum 0.5\n\
            cake_wait_seconds_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(plain(text), expected);
    }
}
