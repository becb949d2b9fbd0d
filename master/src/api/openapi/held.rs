//! Whether readers of bodies refuse what their description does, and nothing else: a value at each bound, and one past it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::examples::readers;

/// Keywords of schemas that refuse something.
const BOUNDS: [&str; 13] = [
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "enum",
    "pattern",
    "propertyNames",
    "required",
    "not",
];

/// Fields that are taken at their bounds only where others agree with them: a tool that must be called has its name, `best_of`
/// is `n`, no token is new beside `echo` alone, and what a turn answers are messages of their own.
const TOGETHER: [&str; 7] =
    ["name", "n", "best_of", "max_tokens", "max_completion_tokens", "messages", "content"];

/// Whether a value at this bound is taken in some examples only: a word often says which other fields there are.
fn hangs_together(place: &str, keyword: &str) -> bool {
    let field = place.rsplit("/properties/").next().and_then(|it| it.split('/').next());
    keyword == "enum" || field.is_some_and(|it| TOGETHER.contains(&it))
}

/// What is put in an example's place to try a bound: values that are taken, and values that are not.
struct Trial {
    taken: Vec<Value>,
    refused: Vec<Value>,
}

/// The values by which a bound of a schema is tried where the example has `value`.
fn trial(keyword: &str, bound: &Value, schema: &Value, value: &Value) -> Trial {
    let of = |taken: Vec<Value>, refused: Vec<Value>| Trial { taken, refused };
    let count = || usize::try_from(bound.as_u64().expect("a count")).expect("a small one");
    let list = |length: usize| json!(vec![value[0].clone(); length]);
    let text = |length: usize| json!("a".repeat(length));
    let fields = |length: usize| {
        let any = value.as_object().and_then(|it| it.values().next()).expect("a field");
        let fields: BTreeMap<String, &Value> =
            (0..length).map(|it| (it.to_string(), any)).collect();
        json!(fields)
    };
    let beside = |by: f64| match bound.as_i64() {
        Some(whole) if schema["type"] != "number" && !has_type(schema, "number") => {
            json!(whole + by.signum() as i64)
        }
        _ => json!(bound.as_f64().expect("a number") + by),
    };
    let around = |make: &dyn Fn(usize) -> Value, past: Option<usize>| {
        of(vec![make(count())], past.map(make).into_iter().collect())
    };
    match keyword {
        "minimum" => of(vec![bound.clone()], vec![beside(-0.005)]),
        "maximum" => of(vec![bound.clone()], vec![beside(0.005)]),
        "minItems" => around(&list, count().checked_sub(1)),
        "maxItems" if count() == 0 => of(vec![json!([])], vec![json!([{}])]),
        "maxItems" => around(&list, Some(count() + 1)),
        "minLength" => around(&text, count().checked_sub(1)),
        "maxLength" => around(&text, Some(count() + 1)),
        "minProperties" => around(&fields, count().checked_sub(1)),
        "maxProperties" => around(&fields, Some(count() + 1)),
        "enum" => {
            let words = bound.as_array().expect("words").iter().filter(|word| !word.is_null());
            of(words.cloned().collect(), vec![json!("none-such")])
        }
        "not" => of(vec![value.clone()], vec![bound["const"].clone()]),
        "propertyNames" => {
            let named =
                |name: &str| json!({ name: value.as_object().and_then(|it| it.values().next()) });
            of(vec![named("999999999")], ["", "+1", "1000000000"].map(named).to_vec())
        }
        "pattern" => of(vec![value.clone()], vec![json!("not one word")]),
        "required" => {
            let without = |name: &Value| {
                let mut fields = value.clone();
                fields.as_object_mut().expect("an object").remove(name.as_str().expect("a name"));
                fields
            };
            of(vec![value.clone()], bound.as_array().expect("names").iter().map(without).collect())
        }
        _ => unreachable!("{keyword} is none of the bounds"),
    }
}

fn has_type(schema: &Value, kind: &str) -> bool {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|it| it == kind),
        one => one == kind,
    }
}

/// How a schema's part is met in a value of it.
enum Leads {
    /// It is the same value.
    Nowhere,
    /// In its field of this name.
    Field(String),
    /// In each of its items, or of its other fields.
    Each,
}

/// A schema's place in the description, and the schema.
type At<'a> = (String, &'a Value);

struct Described {
    document: Value,
}

impl Described {
    fn at(&self, place: String) -> At<'_> {
        let schema =
            self.document.pointer(&place).unwrap_or_else(|| panic!("{place} is not there"));
        match schema["$ref"].as_str().and_then(|it| it.strip_prefix('#')) {
            Some(to) => self.at(to.to_owned()),
            None => (place, schema),
        }
    }

    fn body(&self, path: &str) -> At<'_> {
        let path = path.replace('/', "~1");
        self.at(format!("/paths/{path}/post/requestBody/content/application~1json/schema"))
    }

    /// The schemas right beneath one, with what leads to them in a value.
    fn beneath(&self, (place, schema): &At<'_>) -> Vec<(Leads, At<'_>)> {
        let mut all = Vec::new();
        for word in ["anyOf", "allOf"] {
            let count = schema[word].as_array().map_or(0, Vec::len);
            all.extend(
                (0..count).map(|it| (Leads::Nowhere, self.at(format!("{place}/{word}/{it}")))),
            );
        }
        for name in schema["properties"].as_object().into_iter().flat_map(|it| it.keys()) {
            let escaped = name.replace('~', "~0").replace('/', "~1");
            all.push((
                Leads::Field(name.clone()),
                self.at(format!("{place}/properties/{escaped}")),
            ));
        }
        for word in ["items", "additionalProperties"] {
            if schema[word].is_object() {
                all.push((Leads::Each, self.at(format!("{place}/{word}"))));
            }
        }
        all
    }

    /// Whether a value is of a schema's kind, as far as alternatives are told apart by it.
    fn fits(&self, at: &At<'_>, value: &Value) -> bool {
        let (place, schema) = at;
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        if schema["anyOf"].is_array() && schema["type"].is_null() {
            return self.beneath(at).iter().any(|(_, at)| self.fits(at, value));
        }
        let is_kind = schema["type"].is_null()
            || has_type(schema, kind)
            || (kind == "integer" && has_type(schema, "number"));
        let first = value.get(0).filter(|_| schema["items"].is_object());
        let mut needed = schema["required"].as_array().into_iter().flatten();
        let has_all = !value.is_object()
            || needed.all(|name| name.as_str().is_some_and(|it| !value[it].is_null()));
        is_kind
            && has_all
            && first.is_none_or(|first| self.fits(&self.at(format!("{place}/items")), first))
    }

    /// The bounds that meet this value or what is in it: where they are described, which, and where in the body.
    fn meet(
        &self,
        at: &At<'_>,
        value: &Value,
        here: &str,
        met: &mut Vec<(String, &'static str, String)>,
    ) {
        if !self.fits(at, value) {
            return;
        }
        let bounds = BOUNDS.into_iter().filter(|word| !at.1[*word].is_null());
        let of_value = bounds.filter(|word| match *word {
            "required" | "propertyNames" | "minProperties" | "maxProperties" => value.is_object(),
            "minItems" | "maxItems" => value.is_array(),
            "minLength" | "maxLength" | "pattern" => value.is_string(),
            "minimum" | "maximum" | "not" => value.is_number(),
            _ => !value.is_null(),
        });
        met.extend(of_value.map(|word| (at.0.clone(), word, here.to_owned())));
        let known: Vec<&String> =
            at.1["properties"].as_object().map(|it| it.keys().collect()).unwrap_or_default();
        for (leads, beneath) in self.beneath(at) {
            match (leads, value) {
                (Leads::Nowhere, _) => self.meet(&beneath, value, here, met),
                (Leads::Field(name), _) => {
                    if let Some(value) = value.get(&name) {
                        self.meet(&beneath, value, &format!("{here}/{name}"), met);
                    }
                }
                (Leads::Each, Value::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        self.meet(&beneath, item, &format!("{here}/{index}"), met);
                    }
                }
                (Leads::Each, Value::Object(fields)) => {
                    for (name, value) in fields.iter().filter(|(name, _)| !known.contains(name)) {
                        self.meet(&beneath, value, &format!("{here}/{name}"), met);
                    }
                }
                (Leads::Each, _) => {}
            }
        }
    }

    /// All bounds beneath a schema.
    fn all(
        &self,
        at: &At<'_>,
        seen: &mut BTreeSet<String>,
        all: &mut BTreeSet<(String, &'static str)>,
    ) {
        if !seen.insert(at.0.clone()) {
            return;
        }
        let bounds = BOUNDS.into_iter().filter(|word| !at.1[*word].is_null());
        all.extend(bounds.map(|word| (at.0.clone(), word)));
        for (_, beneath) in self.beneath(at) {
            self.all(&beneath, seen, all);
        }
    }
}

#[test]
fn each_bound_that_is_described_is_taken_at_it_and_refused_one_past_it() {
    let described = Described { document: super::description() };
    let readers = readers();
    let paths: BTreeSet<&str> =
        readers.iter().flat_map(|(paths, ..)| paths.iter().copied()).collect();
    let asked =
        super::operations::all().into_iter().filter(|it| it.asks.is_some()).map(|it| it.path);
    assert_eq!(paths, asked.collect::<BTreeSet<_>>());
    let (mut tried, mut wrong) = (BTreeSet::new(), Vec::new());
    for (paths, read, examples) in readers {
        let read = |body: &Value| read(body.to_string().as_bytes());
        for path in paths {
            let at = described.body(path);
            let mut untried = BTreeSet::new();
            described.all(&at, &mut BTreeSet::new(), &mut untried);
            let mut taken: BTreeMap<(String, &str, String), bool> = BTreeMap::new();
            for example in &examples {
                if let Err(error) = read(example) {
                    wrong.push(format!("{path}: {example}: {error}"));
                }
                let mut met = Vec::new();
                described.meet(&at, example, "", &mut met);
                for (place, word, here) in met {
                    let schema = described.document.pointer(&place).expect("it was met");
                    let value = example.pointer(&here).expect("it was met");
                    let of = trial(word, &schema[word], schema, value);
                    let body = |value: Value| {
                        let mut body = example.clone();
                        *body.pointer_mut(&here).expect("it was met") = value;
                        body
                    };
                    for past in of.refused {
                        let found = read(&body(past.clone()));
                        let short: String = past.to_string().chars().take(80).collect();
                        if found.is_ok() {
                            wrong.push(format!(
                                "{path}: {place} says {word}, and {here} is taken as {short}"
                            ));
                        }
                    }
                    for at in of.taken {
                        let which = if word == "enum" { at.to_string() } else { String::new() };
                        let found = read(&body(at));
                        if let Err(error) = &found
                            && !hangs_together(&place, word)
                        {
                            wrong.push(format!("{path}: {place} says {word}, and {here}: {error}"));
                        }
                        *taken.entry((place.clone(), word, which)).or_default() |= found.is_ok();
                    }
                    untried.remove(&(place, word));
                    tried.insert(word);
                }
            }
            let refused = taken.iter().filter(|(_, is_taken)| !**is_taken);
            wrong.extend(
                refused.map(|(at, _)| format!("{path}: described, and never taken: {at:?}")),
            );
            wrong.extend(untried.iter().map(|at| format!("{path}: no example has {at:?}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let untried: Vec<&str> = BOUNDS.into_iter().filter(|word| !tried.contains(word)).collect();
    assert_eq!(untried, ["minProperties"], "nothing described says these");
}
