//! How much an error of a weight counts: by its column, as much as what it is multiplied with is large.
//!
//! The squared error of a product is the sum, over a row's columns, of the weight's squared error times the activation's
//! square, as far as activations of two columns have nothing in common: the diagonal of the Hessian of that error, which
//! llama.cpp calls an importance matrix.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::f32::consts::SQRT_2;
use std::sync::Arc;

/// Rows in which all columns count the same, beside those that were seen: few rows say little.
const PRIOR_ROWS: f64 = 16.0;
/// Levels from a number to its double.
const LEVELS: i32 = 8;
/// The level of columns that count as much as the mean.
const MEAN: i32 = 128;
/// 2 to the power of so many eighths.
const EIGHTHS: [f32; LEVELS as usize] =
    [1.0, 1.0905077, 1.1892071, 1.2968396, SQRT_2, 1.5422108, 1.6817929, 1.8340081];

/// How much errors count in each column of a model's matrices, beside their other columns. Those of a layer's experts that
/// are multiplied with hidden states have theirs in common: these states are of one kind, and a text leads few to each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Importance {
    /// By name of the matrix's weight, a level for each column: a byte, eight of which are a factor of two.
    columns: BTreeMap<String, Counts>,
}

/// How much errors count in each column of a matrix: a byte for each, which clones share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts(Arc<[u8]>);

impl Counts {
    /// Columns.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As numbers, `[columns]`: the mean counts 1, or nearly.
    pub fn numbers(&self) -> Vec<f32> {
        self.0.iter().map(|level| count(*level)).collect()
    }

    /// What they are kept as: other bytes count otherwise.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The sum of the squares of what a matrix is multiplied with, column by column.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ColumnSquares {
    /// Rows of activations.
    pub rows: u64,
    /// `[columns]`.
    pub squares: Vec<f64>,
}

impl Importance {
    /// Adds what matrices met, by name of their weights: all those of some layers, whose hidden states have so many numbers.
    pub fn add<'a>(
        &mut self,
        met: impl IntoIterator<Item = (&'a str, &'a ColumnSquares)>,
        hidden_size: usize,
    ) {
        let mut pooled: BTreeMap<Cow<'_, str>, ColumnSquares> = BTreeMap::new();
        for (name, met) in met {
            let has_hidden = met.squares.len() == hidden_size;
            let name = if has_hidden { of_all_experts(name) } else { Cow::Borrowed(name) };
            let all = pooled.entry(name).or_default();
            all.rows += met.rows;
            all.squares.resize(all.squares.len().max(met.squares.len()), 0.0);
            all.squares.iter_mut().zip(&met.squares).for_each(|(all, met)| *all += met);
        }
        let levels = pooled.into_iter().map(|(name, met)| (name.into_owned(), levels(&met)));
        self.columns.extend(levels);
    }

    /// How much errors count in the columns of the matrix whose weight has that name.
    pub fn counts(&self, weight: &str) -> Option<Counts> {
        let of_expert = self.columns.get(weight);
        of_expert.or_else(|| self.columns.get(&*of_all_experts(weight))).cloned()
    }

    /// As text, of a line.
    pub fn to_json(&self) -> String {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let digits =
            |level: &u8| [level >> 4, level & 15].map(|it| char::from(DIGITS[usize::from(it)]));
        let text = |levels: &Counts| levels.0.iter().flat_map(digits).collect();
        let texts: BTreeMap<&String, String> =
            self.columns.iter().map(|(name, levels)| (name, text(levels))).collect();
        serde_json::to_string(&texts).expect("texts by name are JSON")
    }

    /// What [`Importance::to_json`] wrote; `None` if that is something else, or says nothing.
    pub fn from_json(json: &[u8]) -> Option<Importance> {
        let texts: BTreeMap<String, String> = serde_json::from_slice(json).ok()?;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let level = |pair: &[u8; 2]| Some((digit(&pair[0])? << 4 | digit(&pair[1])?) as u8);
        let levels = |text: String| match text.as_bytes().as_chunks() {
            (pairs, []) => pairs.iter().map(level).collect::<Option<_>>().map(Counts),
            _ => None,
        };
        let columns = texts.into_iter().map(|(name, text)| Some((name, levels(text)?)));
        let columns: BTreeMap<_, _> = columns.collect::<Option<_>>()?;
        (!columns.is_empty()).then_some(Importance { columns })
    }
}

/// A name without the number of an expert.
fn of_all_experts(name: &str) -> Cow<'_, str> {
    const EXPERTS: &str = ".experts.";
    let Some((before, after)) = name.split_once(EXPERTS) else { return Cow::Borrowed(name) };
    match after.split_once('.') {
        Some((number, leaf)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Cow::Owned(format!("{before}{EXPERTS}*.{leaf}"))
        }
        _ => Cow::Borrowed(name),
    }
}

/// The level of each column.
fn levels(met: &ColumnSquares) -> Counts {
    let mean = met.squares.iter().sum::<f64>() / met.squares.len().max(1) as f64;
    let rows = met.rows as f64;
    let level = |squares: &f64| {
        // Nothing was seen of it, or nothing that is a number.
        let share = squares / mean;
        let share = if share.is_finite() { share } else { 1.0 };
        let count = (share * rows + PRIOR_ROWS) / (rows + PRIOR_ROWS);
        let level = f64::from(MEAN) + (count.log2() * f64::from(LEVELS)).round();
        level.clamp(0.0, 255.0) as u8
    };
    Counts(met.squares.iter().map(level).collect())
}

/// How much the columns of a level count: exactly the same on every machine.
fn count(level: u8) -> f32 {
    let steps = i32::from(level) - MEAN;
    let power = f32::from_bits(((127 + steps.div_euclid(LEVELS)) as u32) << 23);
    EIGHTHS[steps.rem_euclid(LEVELS) as usize] * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(met: impl IntoIterator<Item = (&'a str, &'a ColumnSquares)>) -> Importance {
        let mut importance = Importance::default();
        importance.add(met, 2);
        importance
    }

    #[test]
    fn columns_count_as_much_as_what_they_meet() {
        let met = ColumnSquares { rows: 1 << 20, squares: vec![0.25, 1.0, 2.75, 0.0] };
        let counts = of([("a.weight", &met)]).counts("a.weight").unwrap().numbers();
        // Steps of an eighth of a doubling.
        for (found, expected) in counts.iter().zip([0.25f32, 1.0, 2.75]) {
            assert!((found / expected).log2().abs() <= 0.5 / 8.0 + 1e-3, "{found} {expected}");
        }
        assert!(counts[3] > 0.0 && counts[3] < 1e-4);
        // Few rows say little, and none nothing.
        let few = |rows| {
            let met = ColumnSquares { rows, squares: vec![0.0, 2.0] };
            of([("a.weight", &met)]).counts("a.weight").unwrap().numbers()
        };
        assert!(few(1)[0] > 0.9 && few(1)[1] < 1.1 && few(100)[0] < 0.2);
        let odd = ColumnSquares { rows: 0, squares: vec![0.0, f64::NAN] };
        let odd = of([("a.weight", &odd)]);
        assert_eq!(odd.counts("a.weight").unwrap().numbers(), [1.0, 1.0]);
        assert_eq!(odd.counts("b.weight"), None);
    }

    #[test]
    fn experts_of_a_layer_count_alike_where_they_see_hidden_states() {
        let met = |squares: &[f64]| ColumnSquares { rows: 1 << 20, squares: squares.into() };
        let up = |expert| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight");
        let down = |expert| format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        let (one, two, inner) = (met(&[4.0, 0.0]), met(&[0.0, 4.0]), met(&[1.0, 1.0, 4.0]));
        let all = of([(&*up(0), &one), (&*up(17), &two), (&*down(3), &inner)]);
        assert_eq!(all.counts(&up(5)).unwrap().numbers(), [1.0, 1.0]);
        assert_eq!(all.counts("model.layers.2.mlp.experts.0.up_proj.weight"), None);
        assert_eq!(all.counts(&down(3)).unwrap().numbers(), [0.5, 0.5, 2.0]);
        assert_eq!(all.counts(&down(4)), None);
        assert_eq!(of_all_experts("a.experts.gate.weight"), "a.experts.gate.weight");
        assert_eq!(of_all_experts("a.experts.3"), "a.experts.3");
    }

    #[test]
    fn what_is_kept_as_text_is_read_again_and_anything_else_is_not() {
        let squares = (0..40).map(|it| f64::from(it * it)).collect();
        let met = ColumnSquares { rows: 99, squares };
        let importance = of([("a", &met), ("b.\"c\"", &met)]);
        let json = importance.to_json();
        assert_eq!(Importance::from_json(json.as_bytes()).as_ref(), Some(&importance));
        assert_ne!(json, Importance::default().to_json());
        for odd in [
            "",
            "[]",
            "{}",
            "{\"a\": 1}",
            "{\"a\": \"0g\"}",
            "{\"a\": \"ä\"}",
            "{\"a\": \"+1\"}",
            "{\"a\": \"012\"}",
        ] {
            assert_eq!(Importance::from_json(odd.as_bytes()), None, "{odd}");
        }
    }

    #[test]
    fn levels_are_powers_of_two_to_the_eighth() {
        for level in 0..=u8::MAX {
            let exact = ((f64::from(level) - 128.0) / 8.0).exp2();
            assert!((f64::from(count(level)) / exact - 1.0).abs() < 1e-6, "{level}");
        }
    }
}
