//! Columns of text.

/// Rows of cells under a head, each column as wide as its widest cell, the last one as long as it is.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|at| row[at].as_str())));
    std::iter::once(line(head)).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["é".to_owned(), "1".to_owned()], ["long".to_owned(), "22".to_owned()]];
        assert_eq!(super::table(["a", "b"], &rows), "a     b\né     1\nlong  22\n");
    }
}
