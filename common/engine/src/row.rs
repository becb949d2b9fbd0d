//! What a row carries between layers: hidden states, and behind them what each layer from the next one on is given beside
//! ([`ModelSpec::row_width`]).

use cake_checkpoint::{LayerRange, ModelSpec};

use crate::error::Error;

/// How the rows that come to a stage, and those that leave it, are made up, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLayout {
    /// Hidden states.
    pub(crate) hidden: usize,
    /// What each layer is given beside; 0 where layers are given nothing.
    given: usize,
    /// A whole row that comes,
    pub(crate) before: usize,
    /// and one that leaves.
    after: usize,
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
            given: model.given_width(),
            before: model.row_width(layers.start),
            after: model.row_width(layers.end),
        }
    }

    /// Hidden states `[rows, hidden]` of `rows`, `[rows, before]`, and what these bring beside, for layers from `first` on.
    pub(crate) fn apart(self, rows: Vec<f32>, first: usize) -> (Vec<f32>, Given) {
        if self.given == 0 {
            return (rows, Given { layout: self, first, rows: Vec::new() });
        }
        let each = rows.chunks_exact(self.before);
        let mut hidden = Vec::with_capacity(each.len() * self.hidden);
        each.for_each(|row| hidden.extend_from_slice(&row[..self.hidden]));
        (hidden, Given { layout: self, first, rows })
    }

    /// The rows that leave, `[rows, after]`: `hidden`, `[rows, hidden]`, and what is for the layers behind the stage.
    pub(crate) fn together(self, hidden: Vec<f32>, given: &Given) -> Vec<f32> {
        if self.given == 0 {
            return hidden;
        }
        let rest = self.before - (self.after - self.hidden);
        let mut rows = Vec::with_capacity(hidden.len() / self.hidden.max(1) * self.after);
        for (hidden, row) in
            hidden.chunks_exact(self.hidden).zip(given.rows.chunks_exact(self.before))
        {
            rows.extend_from_slice(hidden);
            rows.extend_from_slice(&row[rest..]);
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
        let layout = RowLayout { hidden: 2, given: 1, before: 6, after: 4 };
        let rows = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        let (hidden, given) = layout.apart(rows, 3);
        assert_eq!(hidden, [1.0, 2.0, 10.0, 20.0]);
        assert_eq!(given.of(3).unwrap(), [3.0, 30.0]);
        assert_eq!(given.of(4).unwrap(), [4.0, 40.0]);
        assert!(matches!(given.of(2), Err(Error::NothingGiven { layer: 2 })));
        assert!(matches!(given.of(7), Err(Error::NothingGiven { layer: 7 })));
        let left = layout.together(vec![7.0, 8.0, 70.0, 80.0], &given);
        assert_eq!(left, [7.0, 8.0, 5.0, 6.0, 70.0, 80.0, 50.0, 60.0]);
        let plain = RowLayout { hidden: 2, given: 0, before: 2, after: 2 };
        let (hidden, given) = plain.apart(vec![1.0, 2.0], 0);
        assert!(given.of(0).is_err());
        assert_eq!(plain.together(hidden, &given), [1.0, 2.0]);
    }
}
