//! What a row carries between layers: hidden states, behind them sums of experts within a layer that is parted, and then
//! what each layer from the next one on is given beside ([`ModelSpec::row_width`]).

use cake_checkpoint::{LayerRange, ModelSpec};

use crate::error::Error;

/// How the rows that come to a stage, and those that leave it, are made up, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLayout {
    /// Hidden states.
    pub(crate) hidden: usize,
    /// Sums of experts that the rows which come bring behind these, and those that leave: as many numbers, or none.
    sums: [usize; 2],
    /// What each layer is given beside; 0 where layers are given nothing, as they are where rows bring sums.
    given: usize,
    /// A whole row that comes,
    pub(crate) before: usize,
    /// and one that leaves.
    after: usize,
}

/// What layers go on from: hidden states, and the sums of experts that are there before a layer that is parted goes on.
#[derive(Debug, Default)]
pub(crate) struct Hidden<R> {
    /// `[rows, hidden]`.
    pub(crate) states: R,
    /// The same shape; nothing outside such a layer.
    pub(crate) sums: Option<R>,
}

/// What the rows of a step bring for the layers of a stage beside hidden states.
#[derive(Debug)]
pub(crate) struct Given {
    layout: RowLayout,
    /// Layer of the first part behind the hidden states.
    first: usize,
    /// The rows as they came, `[rows, before]`; nothing where layers are given nothing.
    rows: Vec<f32>,
}

impl RowLayout {
    /// That of a stage of these layers.
    pub(crate) fn new(model: &ModelSpec, layers: LayerRange) -> Self {
        RowLayout {
            hidden: model.hidden_width(),
            sums: [layers.start, layers.end]
                .map(|layer| if model.carries_sums(layer) { model.hidden_width() } else { 0 }),
            given: model.given_width(),
            before: model.row_width(layers.start),
            after: model.row_width(layers.end),
        }
    }

    /// Hidden states and sums of `rows`, `[rows, before]`, and what these bring beside, for layers from `first` on.
    pub(crate) fn apart(self, rows: Vec<f32>, first: usize) -> (Hidden<Vec<f32>>, Given) {
        let nothing = |rows| Given { layout: self, first, rows };
        if self.before == self.hidden {
            return (Hidden { states: rows, sums: None }, nothing(Vec::new()));
        }
        let part = |start: usize, end: usize| {
            let each = rows.chunks_exact(self.before);
            let mut part = Vec::with_capacity(each.len() * (end - start));
            each.for_each(|row| part.extend_from_slice(&row[start..end]));
            part
        };
        let (states, [sums, _]) = (part(0, self.hidden), self.sums);
        let sums = (sums > 0).then(|| part(self.hidden, self.hidden + sums));
        let rows = if self.given == 0 { Vec::new() } else { rows };
        (Hidden { states, sums }, nothing(rows))
    }

    /// The rows that leave, `[rows, after]`: hidden states, sums, and what is for the layers behind the stage.
    pub(crate) fn together(self, hidden: Hidden<Vec<f32>>, given: &Given) -> Vec<f32> {
        let Hidden { states, sums } = hidden;
        if self.given == 0 && sums.is_none() {
            return states;
        }
        let count = states.len() / self.hidden.max(1);
        let rest = self.before.saturating_sub(self.after - self.hidden);
        let mut rows = Vec::with_capacity(count * self.after);
        for row in 0..count {
            let of = |all: &[f32]| all[row * self.hidden..][..self.hidden].to_vec();
            rows.extend(of(&states));
            rows.extend(sums.iter().flat_map(|sums| of(sums)));
            if self.given > 0 && self.after > self.hidden {
                rows.extend_from_slice(&given.rows[row * self.before..][rest..self.before]);
            }
        }
        rows
    }
}

impl Given {
    /// What all rows bring for a layer, `[rows, width]`.
    ///
    /// # Errors
    /// [`Error::NothingGiven`] if that is nothing.
    pub(crate) fn of(&self, layer: usize) -> Result<Vec<f32>, Error> {
        let RowLayout { hidden, given, before, .. } = self.layout;
        let start = layer.checked_sub(self.first).map(|layers| hidden + layers * given);
        let start = start.filter(|start| given > 0 && start + given <= before);
        let start = start.ok_or(Error::NothingGiven { layer })?;
        let each = self.rows.chunks_exact(before);
        let mut all = Vec::with_capacity(each.len() * given);
        each.for_each(|row| all.extend_from_slice(&row[start..start + given]));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_apart_and_put_together_without_what_was_used() {
        // Two hidden numbers, and one for each of layers 3 to 6; the stage has 3 and 4.
        let layout = RowLayout { hidden: 2, sums: [0, 0], given: 1, before: 6, after: 4 };
        let rows = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        let (hidden, given) = layout.apart(rows, 3);
        assert_eq!(hidden.states, [1.0, 2.0, 10.0, 20.0]);
        assert_eq!(given.of(3).unwrap(), [3.0, 30.0]);
        assert_eq!(given.of(4).unwrap(), [4.0, 40.0]);
        assert!(matches!(given.of(2), Err(Error::NothingGiven { layer: 2 })));
        assert!(matches!(given.of(7), Err(Error::NothingGiven { layer: 7 })));
        let hidden = Hidden { states: vec![7.0, 8.0, 70.0, 80.0], sums: None };
        let left = layout.together(hidden, &given);
        assert_eq!(left, [7.0, 8.0, 5.0, 6.0, 70.0, 80.0, 50.0, 60.0]);
        let plain = RowLayout { hidden: 2, sums: [0, 0], given: 0, before: 2, after: 2 };
        let (hidden, given) = plain.apart(vec![1.0, 2.0], 0);
        assert!(given.of(0).is_err());
        assert_eq!(plain.together(hidden, &given), [1.0, 2.0]);
    }

    #[test]
    fn rows_bring_sums_of_experts_and_take_them_along() {
        let layout = RowLayout { hidden: 2, sums: [2, 2], given: 0, before: 4, after: 4 };
        let rows = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let (hidden, given) = layout.apart(rows.clone(), 3);
        assert_eq!(hidden.states, [1.0, 2.0, 5.0, 6.0]);
        assert_eq!(hidden.sums, Some(vec![3.0, 4.0, 7.0, 8.0]));
        assert_eq!(layout.together(hidden, &given), rows);
        let (first, last) = ([0, 2], [2, 0]);
        let first = RowLayout { sums: first, before: 2, ..layout };
        let (hidden, given) = first.apart(vec![1.0, 2.0], 0);
        assert_eq!(hidden.sums, None);
        let hidden = Hidden { sums: Some(vec![3.0, 4.0]), ..hidden };
        assert_eq!(first.together(hidden, &given), [1.0, 2.0, 3.0, 4.0]);
        let last = RowLayout { sums: last, after: 2, ..layout };
        let (hidden, given) = last.apart(rows, 0);
        let hidden = Hidden { sums: None, ..hidden };
        assert_eq!(last.together(hidden, &given), [1.0, 2.0, 5.0, 6.0]);
    }
}
