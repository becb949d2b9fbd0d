//! How much a schema may ask for, looked at before anything is made of it.
//!
//! A schema is a graph: `$ref` leads from one part to another, also back. It is walked with a stack of its own, each
//! part once, in the order in which the compiler meets them; what the compiler would make of it is estimated. The
//! compiler itself recurses and copies, and counts of it no more than how many schemas it has made and how deep it is.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::keywords::{self, Child};
pub use super::limits::*;

/// What a pattern counts beside them, and what one for names does: they are compiled, and compared with each other.
const PATTERN_WEIGHT: u64 = 16;
const NAME_PATTERN_WEIGHT: u64 = 500;
/// What a property counts in an alternative that has it among others: no schema, but rules of a grammar.
const COUNTED_WEIGHT: u64 = 8;
/// Most bytes of a place or a name that a refusal repeats.
const MAX_SHOWN: usize = 120;

/// How much a schema that is within bounds asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Schemas that come of it at most.
    pub expanded: u64,
}

/// Looks whether `schema` is within bounds.
///
/// # Errors
/// [`Refusal`].
pub fn check(schema: &Value) -> Result<Asked, Refusal> {
    check_size(schema)?;
    Walk { root: schema, parts: Vec::new(), sizes: HashMap::new(), references: HashMap::new() }
        .run()
}

/// Bytes and values of it, as JSON: also of what no reference leads to.
fn check_size(schema: &Value) -> Result<(), Refusal> {
    let (mut bytes, mut values, mut todo) = (0, 0, vec![schema]);
    while let Some(value) = todo.pop() {
        values += 1;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => todo.extend(items),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                todo.extend(fields.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        let top = || Pointer(String::new());
        within("bytes of names and texts", bytes as u64, MAX_BYTES as u64, top)?;
        within("values", values as u64, MAX_VALUES as u64, top)?;
    }
    Ok(())
}

/// A part of the schema on the way to it.
struct Part<'s> {
    value: &'s Value,
    /// The part that it is in, or that refers to it.
    from: Option<usize>,
    /// Where it is there, none if that refers to it.
    path: Option<(&'static str, Option<&'s str>)>,
    depth: usize,
    hops: usize,
}

/// What is left to do of a walk: into a part, or back out of it.
enum Todo {
    Enter(usize),
    Leave(usize),
}

/// What the compiler makes of a part: an estimate, from above for nearly all. Two schemas that must both hold are
/// intersected: then each alternative of one gets a copy of the other, and what they refer to is copied in. What comes
/// out larger than this all the same is ended by llguidance's own bounds: `max_size` schemas, and `max_stack_level`
/// intersections in each other.
#[derive(Clone, Copy)]
struct Size {
    /// Schemas in it, where a reference is one.
    written: u64,
    /// Schemas in it if its references are replaced by what they lead to.
    full: u64,
    /// Alternatives at its top.
    arms: u64,
    /// Most alternatives on a way from there down.
    deep: u64,
    /// Those of its schemas that stand for many: every other property, item or name gets a copy.
    wild: u64,
    /// The largest `multipleOf` in it; of two that may meet their product.
    multiple: u64,
    /// Most properties of an object in it; of two that may meet their sum.
    properties: u64,
    /// Whether an object in it says how many of them there may be.
    is_counted: bool,
}

impl Size {
    const ONE: Self = Self {
        written: 1,
        full: 1,
        arms: 1,
        deep: 1,
        wild: 0,
        multiple: 1,
        properties: 0,
        is_counted: false,
    };

    /// Of both together.
    fn and(self, other: Self) -> Self {
        let copies = |one: Self| one.arms.saturating_mul(one.deep).saturating_add(one.wild);
        let of = |one: Self, other: Self| copies(one).saturating_mul(other.full);
        let properties = self.properties.saturating_add(other.properties);
        let is_counted = self.is_counted || other.is_counted;
        let all = of(self, other).saturating_add(of(other, self)).saturating_add(if is_counted {
            counted(properties)
        } else {
            0
        });
        let wild = (self.wild.saturating_add(1)).saturating_mul(other.wild.saturating_add(1));
        Self {
            written: all,
            full: all,
            arms: self.arms.saturating_mul(other.arms),
            deep: self.deep.saturating_mul(other.deep),
            wild: wild.saturating_sub(1),
            multiple: self.multiple.saturating_mul(other.multiple),
            properties,
            is_counted,
        }
    }

    /// Of a schema that has `inner` in it, which stands for many or not.
    fn around(self, (inner, is_wild): (Self, bool)) -> Self {
        Self {
            deep: self.deep.max(inner.arms.saturating_mul(inner.deep)),
            wild: self.wild.saturating_add(inner.wild).saturating_add(if is_wild {
                inner.full
            } else {
                0
            }),
            ..self.beside(inner)
        }
    }

    /// Of alternatives with one more.
    fn or(self, other: Self) -> Self {
        Self {
            arms: self.arms.saturating_add(other.arms),
            deep: self.deep.max(other.deep),
            wild: self.wild.saturating_add(other.wild),
            ..self.beside(other)
        }
    }

    fn beside(self, other: Self) -> Self {
        Self {
            written: self.written.saturating_add(other.written),
            full: self.full.saturating_add(other.full),
            multiple: self.multiple.max(other.multiple),
            properties: self.properties.max(other.properties),
            is_counted: self.is_counted || other.is_counted,
            ..self
        }
    }

    /// Of a reference to it.
    fn referred(self) -> Self {
        Self { written: 1, ..self }
    }
}

struct Walk<'s> {
    root: &'s Value,
    /// Parts that were met, each with the way to it.
    parts: Vec<Part<'s>>,
    /// Sizes of parts by where they lie in memory; none while a part is being walked.
    sizes: HashMap<usize, Option<Size>>,
    /// What references say, and where they lead.
    references: HashMap<&'s str, &'s Value>,
}

impl<'s> Walk<'s> {
    fn run(mut self) -> Result<Asked, Refusal> {
        self.parts.push(Part { value: self.root, from: None, path: None, depth: 0, hops: 0 });
        let mut todo = vec![Todo::Enter(0)];
        while let Some(next) = todo.pop() {
            match next {
                Todo::Enter(part) => self.enter(part, &mut todo)?,
                Todo::Leave(part) => self.leave(part)?,
            }
        }
        // What each reference leads to is compiled by itself.
        let targets = self.references.values().map(|target| self.size_of(target).written);
        let expanded = targets.fold(self.size_of(self.root).written, u64::saturating_add);
        let top = || Pointer(String::new());
        within("schemas that come of it", expanded, MAX_EXPANDED, top)?;
        Ok(Asked { expanded })
    }

    /// Comes to a part: what is in it, and what it refers to, is next.
    fn enter(&mut self, index: usize, todo: &mut Vec<Todo>) -> Result<(), Refusal> {
        let Part { value, depth, hops, .. } = self.parts[index];
        if self.sizes.contains_key(&address(value)) {
            return Ok(());
        }
        let place = || self.place(index);
        within("schemas", self.sizes.len() as u64 + 1, MAX_SCHEMAS as u64, place)?;
        within("levels", depth as u64, MAX_DEPTH as u64, place)?;
        within("one $ref after the other", hops as u64, MAX_HOPS as u64, place)?;
        self.sizes.insert(address(value), None);
        todo.push(Todo::Leave(index));
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Bool(_) => return Ok(()),
            _ => {
                return Err(Refusal::Kind {
                    keyword: "schema",
                    place: self.place(index),
                    expected: "an object or a boolean",
                });
            }
        };
        keywords::check(fields, &|keyword, name| self.place_in(index, keyword, name))?;
        let first = todo.len();
        for (keyword, value) in fields {
            if keyword == "$ref" {
                let target = self.follow(index, value)?;
                todo.push(Todo::Enter(self.parts.len()));
                let hops = hops + 1;
                self.parts.push(Part {
                    value: target,
                    from: Some(index),
                    path: None,
                    depth: 0,
                    hops,
                });
                continue;
            }
            for Child { keyword, name, schema } in keywords::children(keyword, value) {
                todo.push(Todo::Enter(self.parts.len()));
                let (from, path) = (Some(index), Some((keyword, name)));
                self.parts.push(Part { value: schema, from, path, depth: depth + 1, hops });
            }
        }
        todo[first..].reverse(); // The first one is next.
        Ok(())
    }

    /// Has walked all of a part.
    fn leave(&mut self, index: usize) -> Result<(), Refusal> {
        let value = self.parts[index].value;
        let size = value.as_object().map_or(Size::ONE, |fields| self.estimate(fields));
        within("schemas that come of it", size.written, MAX_EXPANDED, || self.place(index))?;
        within("multipleOf", size.multiple, MAX_MULTIPLE, || self.place(index))?;
        let most = MAX_PROPERTIES as u64;
        within("properties together", size.properties, most, || self.place(index))?;
        self.sizes.insert(address(value), Some(size));
        Ok(())
    }

    /// Of a schema whose parts are known.
    fn estimate(&self, fields: &Map<String, Value>) -> Size {
        let children = |keyword: &str| {
            let all = fields.get(keyword).map(|value| keywords::children(keyword, value));
            all.unwrap_or_default().into_iter().map(|child| self.size_of(child.schema))
        };
        let is_own =
            |keyword: &str| !keywords::is_applicator(keyword) && !keywords::is_annotation(keyword);
        let mut parts: Vec<Size> = Vec::new();
        // What stands in the schema itself.
        if fields.keys().any(|keyword| is_own(keyword)) {
            let mut size = Size::ONE;
            for (keyword, value) in fields.iter().filter(|(keyword, _)| is_own(keyword)) {
                let many = keywords::stands_for_many(keyword);
                let inner = keywords::children(keyword, value).into_iter();
                let inner = inner
                    .map(|child| (self.size_of(child.schema), many && child.schema.is_object()));
                size = inner.fold(size, Size::around);
            }
            let names =
                fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
            let patterns = u64::from(fields.contains_key("pattern"));
            let own = keywords::properties(fields) as u64;
            size.properties = size.properties.max(own);
            size.is_counted |= keywords::is_counted(fields);
            let alternatives = if keywords::is_counted(fields) { counted(own) } else { 0 };
            let weight =
                NAME_PATTERN_WEIGHT * names as u64 + PATTERN_WEIGHT * patterns + alternatives;
            (size.written, size.full) = (size.written + weight, size.full + weight);
            if let Some((multiple, _)) = fields.get("multipleOf").and_then(keywords::decimal) {
                size.multiple = size.multiple.max(multiple);
            }
            parts.push(size);
        }
        let none = Size { arms: 0, ..Size::ONE };
        for keyword in ["anyOf", "oneOf"] {
            if fields.contains_key(keyword) {
                parts.push(children(keyword).fold(none, Size::or));
            }
        }
        parts.extend(children("allOf"));
        for value in [fields.get("const"), fields.get("enum")].into_iter().flatten() {
            let arms = value.as_array().map_or(1, Vec::len) as u64;
            let count = keywords::values(value);
            parts.push(Size { written: count, full: count, arms, ..Size::ONE });
        }
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let target = self.references.get(reference);
            parts.push(target.map_or(Size::ONE, |target| self.size_of(target).referred()));
        }
        parts.into_iter().reduce(Size::and).unwrap_or(Size::ONE)
    }

    /// That of a part; of one that is being walked, which refers to itself, that of a reference.
    fn size_of(&self, value: &Value) -> Size {
        self.sizes.get(&address(value)).copied().flatten().unwrap_or(Size::ONE)
    }

    /// Where a reference leads, as the compiler reads it: without the escapes of JSON pointers.
    fn follow(&mut self, index: usize, reference: &'s Value) -> Result<&'s Value, Refusal> {
        let place = |walk: &Self| walk.place_in(index, "$ref", None);
        let Some(text) = reference.as_str() else {
            return Err(Refusal::Kind {
                keyword: "$ref",
                place: place(self),
                expected: "a string",
            });
        };
        if let Some(target) = self.references.get(text) {
            return Ok(target);
        }
        let step = |at: &'s Value, segment: &str| match at {
            Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
            at => at.get(segment),
        };
        let target = match text.strip_prefix('#') {
            Some("" | "/") => Some(self.root),
            Some(path) => {
                path.strip_prefix('/').and_then(|path| path.split('/').try_fold(self.root, step))
            }
            None => None,
        };
        let refused =
            |walk: &Self| Refusal::Reference { place: place(walk), reference: shown(text) };
        let target = target.ok_or_else(|| refused(self))?;
        self.references.insert(text, target);
        let count = self.references.len() as u64;
        within("different $ref", count, MAX_REFERENCES as u64, || place(self))?;
        Ok(target)
    }

    fn place_in(&self, index: usize, keyword: &str, name: Option<&str>) -> Pointer {
        let Pointer(mut path) = self.place(index);
        for segment in [Some(keyword), name].into_iter().flatten() {
            path.push('/');
            path.push_str(segment);
        }
        Pointer(shown(&path))
    }

    /// The way to a part from the last reference on, or from the top.
    fn place(&self, index: usize) -> Pointer {
        let (mut segments, mut at) = (Vec::new(), Some(index));
        while let Some(Part { from, path, .. }) = at.map(|at| &self.parts[at]) {
            if let Some((keyword, name)) = path {
                segments.extend(name.iter().copied().chain([*keyword]));
            } else if let Some(from) = from {
                let reference = self.parts[*from].value["$ref"].as_str().unwrap_or_default();
                segments.push(reference.trim_start_matches(['#', '/']));
                break;
            }
            at = *from;
        }
        let path: String = segments.iter().rev().flat_map(|segment| ["/", segment]).collect();
        Pointer(shown(&path))
    }
}

/// What so many properties count of which one must be there: each has an alternative with all the others.
fn counted(properties: u64) -> u64 {
    properties.saturating_mul(properties).saturating_mul(COUNTED_WEIGHT)
}

/// Where a value lies: parts of one schema are told from each other by it.
fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// The beginning of a text that a client sent.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
