//! What is enforced, what is refused, and how much either takes.

use super::compile::{AT_ONCE, LARGE_UNITS};
use super::*;

/// A token for each byte of ASCII, one of several, and two that end.
fn grammars() -> Grammars {
    let mut tokens: Vec<Option<Vec<u8>>> = (0..128u8).map(|byte| Some(vec![byte])).collect();
    tokens.extend([Some(b"\"name\"".to_vec()), None, None]);
    Grammars::new(&tokens, &[129, 130, 999]).expect("a tokenizer")
}

fn allowed(grammar: &mut Grammar) -> Vec<u32> {
    let mut scores = vec![0.0; 140];
    grammar.mask(&mut scores).expect("a mask");
    (0..140).filter(|id| scores[*id as usize] == 0.0).collect()
}

#[test]
fn only_what_the_schema_allows_can_come() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["a", "b"] } },
        "required": ["name"],
        "additionalProperties": false,
    });
    let mut grammar = grammars().compile(schema).expect("a schema");
    assert_eq!(allowed(&mut grammar), [u32::from(b'{')]);
    grammar.take(u32::from(b'{')).unwrap();
    assert_eq!(allowed(&mut grammar), [u32::from(b'"'), 128]);
    let mut other = grammar.clone();
    other.take(u32::from(b'"')).unwrap();
    assert_eq!(allowed(&mut other), [u32::from(b'n')]);
    grammar.take(128).unwrap();
    for byte in b":\"" {
        grammar.take(u32::from(*byte)).unwrap();
    }
    assert_eq!(allowed(&mut grammar), [u32::from(b'a'), u32::from(b'b')]);
    for byte in b"b\"}" {
        assert!(!grammar.is_over());
        grammar.take(u32::from(*byte)).unwrap();
    }
    assert!(grammar.is_over());
    assert!(other.take(u32::from(b'x')).is_err());
}

#[test]
fn what_may_end_or_go_on_allows_an_end() {
    let mut number = grammars().compile(json!({ "type": "integer" })).expect("a schema");
    number.take(u32::from(b'7')).unwrap();
    let allowed = allowed(&mut number);
    assert!(allowed.contains(&129) && allowed.contains(&130), "{allowed:?}");
    assert!(allowed.contains(&u32::from(b'0')) && !allowed.contains(&u32::from(b' ')));
}

#[test]
fn what_is_no_schema_is_refused() {
    let grammars = grammars();
    let refused = |schema: Value| grammars.compile(schema).expect_err("refused");
    let said = refused(json!([])).to_string();
    assert!(said.contains("schema at the top is not an object"), "{said}");
    let said = refused(json!({ "type": "nothing" })).to_string();
    assert!(said.contains("type at /type is not one of JSON's types"), "{said}");
    let said = refused(json!({ "$ref": "#/nowhere" })).to_string();
    assert!(said.contains("#/nowhere"), "{said}");
    let said = refused(json!({ "type": "array", "uniqueItems": true })).to_string();
    assert!(said.contains("uniqueItems"), "{said}");
    let said = refused(json!({ "type": "string", "pattern": "a(b" })).to_string();
    assert!(said.contains("regex parse error: unclosed group") && !said.contains('\n'), "{said}");
    assert!(matches!(refused(json!(true)), Error::Unsupported(_)));
    assert!(matches!(Grammars::new(&[Some(vec![65])], &[]), Err(Error::Tokenizer(_))));
    assert!(grammars.compile(Grammars::any_object()).is_ok());
}

/// On a stack as compilations have.
fn deep<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, act).expect("a thread").join().expect("no panic")
    })
}

fn chain(length: usize) -> Value {
    let next = |at: usize| json!({ "items": { "$ref": format!("#/$defs/d{}", at + 1) } });
    let mut definitions: serde_json::Map<String, Value> =
        (0..length).map(|at| (format!("d{at}"), next(at))).collect();
    definitions.insert(format!("d{length}"), json!({ "type": "integer" }));
    json!({ "$ref": "#/$defs/d0", "$defs": definitions })
}

/// Takes as much as `make` makes of `most`, and refuses one more in these words.
#[track_caller]
fn assert_bound(what: &str, most: u64, make: impl Fn(u64) -> Value) {
    let checked = bounds::check(&make(most));
    assert!(checked.is_ok(), "{what}: {checked:?}");
    let said = bounds::check(&make(most + 1)).expect_err(what).to_string();
    assert!(said.contains(what) && said.len() < 300, "{what}: {said}");
}

fn named(count: u64, schema: &Value) -> Value {
    (0..count)
        .map(|at| (format!("n{at}"), schema.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn each_bound_is_taken_and_one_more_is_refused() {
    use bounds::*;
    let text = |count: u64| "a".repeat(count as usize);
    let list = |count: u64| vec![json!(true); count as usize];
    assert_bound("bytes of names", MAX_BYTES as u64, |n| json!({ "title": text(n - 5) }));
    assert_bound("values", MAX_VALUES as u64, |n| json!({ "examples": list(n - 2) }));
    assert_bound("schemas at", MAX_SCHEMAS as u64, |n| {
        let lists = (0..8).map(|at| json!({ "prefixItems": list((n - 9 + at) / 8) }));
        json!({ "prefixItems": lists.collect::<Vec<_>>() })
    });
    assert_bound("levels", MAX_DEPTH as u64, |n| {
        (0..n).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }))
    });
    assert_bound("one $ref after the other", MAX_HOPS as u64, |n| chain(n as usize - 1));
    assert_bound("different $ref", MAX_REFERENCES as u64, |n| {
        let all = (0..n).map(|at| json!({ "$ref": format!("#/$defs/n{at}") }));
        json!({ "prefixItems": all.collect::<Vec<_>>(), "$defs": named(n, &json!({})) })
    });
    assert_bound(
        "properties",
        MAX_PROPERTIES as u64,
        |n| json!({ "properties": named(n, &json!({})) }),
    );
    assert_bound(
        "properties",
        MAX_COUNTED_PROPERTIES as u64,
        |n| json!({ "properties": named(n - 1, &json!({})), "required": ["n0", "x"], "minProperties": 1 }),
    );
    assert_bound(
        "patterns for names",
        MAX_NAME_PATTERNS as u64,
        |n| json!({ "patternProperties": named(n, &json!({})) }),
    );
    assert_bound("anyOf", MAX_ALTERNATIVES as u64, |n| json!({ "anyOf": list(n) }));
    assert_bound(
        "enum",
        MAX_ALTERNATIVES as u64,
        |n| json!({ "enum": (0..n).collect::<Vec<_>>() }),
    );
    assert_bound("oneOf", MAX_EXCLUSIVE as u64, |n| json!({ "oneOf": list(n) }));
    for keyword in
        ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"]
    {
        assert_bound(keyword, MAX_COUNT, |n| json!({ keyword: n }));
    }
    assert_bound("bytes of a pattern", MAX_PATTERN_BYTES as u64, |n| json!({ "pattern": text(n) }));
    assert_bound("written out", MAX_WRITTEN_OUT, |n| json!({ "pattern": format!("a{{{n}}}") }));
    assert_bound(
        "written out",
        MAX_WRITTEN_OUT / 100,
        |n| json!({ "patternProperties": { format!("(a{{{n}}}){{100}}"): true } }),
    );
    assert_bound("multipleOf", MAX_MULTIPLE, |n| json!({ "multipleOf": n }));
    assert_bound(
        "multipleOf",
        MAX_MULTIPLE / 64,
        |n| json!({ "allOf": [{ "multipleOf": 64 }, { "properties": { "a": { "multipleOf": n } } }] }),
    );
    assert_bound("decimals of multipleOf", MAX_DECIMALS.into(), |n| {
        serde_json::from_str(&format!("{{\"multipleOf\": 1e-{n}}}")).expect("JSON")
    });
    // What stands apart meets in one object.
    let apart = |count: u64, other: Value| json!({ "allOf": [{ "properties": named(count, &json!({})) }, other] });
    assert!(bounds::check(&apart(40, json!({ "minProperties": 1 }))).is_ok());
    assert!(bounds::check(&apart(100, json!({ "minProperties": 1 }))).is_err());
    let others = json!({ "properties": { "a": {} } });
    assert_bound("properties together", MAX_PROPERTIES as u64, |n| apart(n - 1, others.clone()));
    // Of a list of alternatives each is copied to each of another list, wherever they meet.
    let arms =
        |count: u64, schema: &Value| json!({ "anyOf": vec![schema.clone(); count as usize] });
    let all = [arms(40, &json!({ "items": {} })), arms(300, &json!({ "items": {} }))];
    assert!(bounds::check(&json!({ "allOf": all[..1] })).is_ok());
    let said = bounds::check(&json!({ "allOf": all })).expect_err("many").to_string();
    assert!(said.contains("schemas that come of it"), "{said}");
    let both = json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }], "$defs": { "a": all[0], "b": all[1] } });
    assert!(bounds::check(&both).is_err());
    let beside = json!({ "$ref": "#/$defs/b", "$defs": { "b": all[1] }, "anyOf": all[0]["anyOf"] });
    assert!(bounds::check(&beside).is_err());
}

#[test]
fn what_a_keyword_cannot_have_is_refused_with_its_place() {
    for (schema, expected) in [
        (json!({ "minimum": "é".repeat(200) }), "minimum at /minimum is not a number"),
        (
            json!({ "items": { "maxItems": -1 } }),
            "maxItems at /items/maxItems is not a whole number",
        ),
        (json!({ "properties": { "a": { "pattern": 1 } } }), "pattern at /properties/a/pattern"),
        (json!({ "properties": [] }), "properties at /properties is not an object"),
        (json!({ "anyOf": {} }), "anyOf at /anyOf is not a list"),
        (json!({ "enum": {} }), "enum at /enum is not a list"),
        (json!({ "items": 3 }), "schema at /items is not an object or a boolean"),
        (json!({ "type": ["null", "null"] }), "type at /type"),
        (json!({ "multipleOf": 0 }), "multipleOf at /multipleOf is not greater than 0"),
        (json!({ "multipleOf": 1e-300 }), "multipleOf"),
        (json!({ "pattern": "(?P<stop>a)" }), "\"stop\""),
        (json!({ "$ref": 1 }), "$ref at /$ref is not a string"),
        (json!({ "$ref": "https://example.org/x" }), "https://example.org/x"),
        (json!({ "$ref": "#a" }), "\"#a\""),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "items": { "$ref": "#/b" } } } }),
            "/$defs/a/items/$ref",
        ),
        (json!({ "$ref": "#/title", "title": "no schema" }), "schema at /title"),
    ] {
        let said = bounds::check(&schema).expect_err("refused").to_string();
        assert!(said.contains(expected), "{said}, not {expected}");
    }
    let long = json!({ "properties": { "x".repeat(5000): { "items": { "type": "x" } } } });
    let said = bounds::check(&long).expect_err("refused").to_string();
    assert!(said.len() < 300, "{said}");
}

#[test]
fn schemas_that_refer_to_themselves_are_taken() {
    let tree = json!({
        "type": "object",
        "properties": {
            "value": { "type": "number", "multipleOf": 0.01 },
            "children": { "type": "array", "items": { "$ref": "#" } },
            "parent": { "anyOf": [{ "type": "null" }, { "$ref": "#/properties/value" }] },
        },
        "required": ["value", "children"],
        "additionalProperties": false,
    });
    let mutual = json!({
        "$ref": "#/$defs/a",
        "$defs": {
            "a": { "type": "array", "items": { "$ref": "#/$defs/b" }, "minItems": 1 },
            "b": { "type": "object", "additionalProperties": { "$ref": "#/$defs/a" } },
        },
    });
    let long = chain(bounds::MAX_HOPS - 1);
    for schema in [tree, mutual, long] {
        let said = schema.to_string();
        let compiled = deep(|| grammars().compile(schema));
        assert!(compiled.is_ok(), "{compiled:?}: {said}");
    }
    // What leads to itself and nothing else, alone or beside another keyword, is an error and no endless way.
    for schema in [
        json!({ "$ref": "#" }),
        json!({ "$ref": "#", "minItems": 3 }),
        json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] }),
        json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#/anyOf/0" }] }),
    ] {
        let grammar = deep(|| grammars().compile(schema));
        assert!(
            grammar.is_err()
                || grammar.is_ok_and(|mut grammar| grammar.mask(&mut [0.0; 140]).is_err())
        );
    }
}

#[test]
fn a_search_without_end_is_cut_short() {
    // Each is within its bound, and what must hold for all of them is searched for.
    for schema in [
        json!({ "type": "integer", "multipleOf": bounds::MAX_MULTIPLE - 3, "minimum": 123_456_789_123i64 }),
        json!({ "type": "string", "pattern": "^(.*a.{900})$", "minLength": 2000, "maxLength": 100_000 }),
        json!({ "type": "string", "pattern": "^((a{1,20}){1,20}){1,20}$", "minLength": 7000 }),
    ] {
        let compiled = deep(|| grammars().compile(schema));
        match compiled {
            Err(error) => {
                assert!(matches!(error, Error::TooMuch | Error::Unsupported(_)), "{error}")
            }
            Ok(mut grammar) => drop(grammar.mask(&mut [0.0; 140])),
        }
    }
    // The library's own tables would have as many states as the number is large.
    let compiler = &grammars().compiler;
    let large = json!({ "type": "integer", "multipleOf": 99_999_989 });
    let refused = deep(|| compiler.compile(large, &|| false).map(drop));
    assert_eq!(refused, Err(Error::TooMuch));
}

#[test]
fn what_may_come_next_is_cut_short_too() {
    // Any of the last so many characters may have been the one: the states double with each.
    let schema = json!({ "type": "string", "pattern": "^[ab]*a([ab]{3,2000}|[ab]{7,1999})c$" });
    let Ok(mut grammar) = deep(|| grammars().compile(schema)) else { return };
    grammar.take(u32::from(b'"')).expect("a string");
    let mut scores = [0.0; 140];
    for at in 0..2000 {
        scores.fill(0.0);
        let letter = if at % 3 == 0 { b'a' } else { b'b' };
        let step = grammar.mask(&mut scores).and_then(|()| grammar.take(letter.into()));
        if let Err(error) = step {
            assert!(error.to_string().contains("takes too much"), "{error}");
            assert!(!grammar.is_over() && grammar.mask(&mut scores).is_err(), "it is no answer");
            return;
        }
    }
}

#[tokio::test]
async fn whoever_leaves_takes_no_turn_and_no_room() {
    let (grammars, schema) = (grammars(), Grammars::any_object());
    let compiler = grammars.compiler.clone();
    let room = compiler.small.room.available_permits();
    let turn = compiler.small.turns.clone().acquire_owned().await.expect("a turn");
    let waiting = tokio::spawn({
        let (grammars, schema) = (grammars.clone(), schema.clone());
        async move { grammars.json_schema(schema).await.map(drop) }
    });
    while compiler.small.room.available_permits() == room {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(compiler.small.room.available_permits(), room, "its room is free");
    drop(turn);
    let grammar = grammars.json_schema(schema).await.expect("it is its turn");
    assert!(compiler.small.room.available_permits() < room);
    let other = grammar.clone();
    drop(grammar);
    assert!(compiler.small.room.available_permits() < room, "a clone has a part of it");
    drop(other);
    assert_eq!(compiler.small.room.available_permits(), room);
    let unwanted = compiler.compile(Grammars::any_object(), &|| true).map(drop);
    assert_eq!(unwanted, Err(Error::TooMuch), "nothing is compiled that nobody waits for");
}

#[tokio::test]
async fn small_schemas_do_not_wait_for_large_ones() {
    let grammars = grammars();
    let compiler = grammars.compiler.clone();
    let schema = json!({ "prefixItems": vec![json!({ "type": "null" }); 1_000] });
    for (wanted, all) in [(&compiler.large.room, LARGE_UNITS), (&compiler.large.turns, AT_ONCE)] {
        // Waits for the thread of the schema before, which tells what it made a moment before it ends.
        let held = wanted.clone().acquire_many_owned(all as u32).await.expect("nobody closes it");
        let mut large = Box::pin(grammars.json_schema(schema.clone()));
        let small = tokio::select! {
            biased;
            _ = &mut large => panic!("somebody else has it"),
            small = grammars.json_schema(Grammars::any_object()) => small,
        };
        assert!(small.is_ok(), "{small:?}");
        drop(held);
        let large = large.await;
        assert!(large.is_ok(), "{large:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_is_told_to_come_back() {
    let grammars = grammars();
    let _turn = grammars.compiler.small.turns.clone().acquire_owned().await.expect("a turn");
    let refused = grammars.json_schema(Grammars::any_object()).await.map(drop);
    assert_eq!(refused, Err(Error::Busy));
    // What is refused for its size is refused at once.
    let refused = grammars.json_schema(json!({ "multipleOf": 99_999_989 })).await.map(drop);
    assert!(matches!(refused, Err(Error::Schema(_))), "{refused:?}");
}
