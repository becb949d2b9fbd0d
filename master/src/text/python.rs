//! What templates expect of Python where the template engine has another mind: how lists and maps are written as text, and
//! that `None` is nothing that a loop goes through.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Environment, Error, Output, State, escape_formatter, filters};

/// Makes an environment write and test values as Python's Jinja does.
pub(super) fn like_python(environment: &mut Environment<'_>) {
    environment.set_formatter(format);
    environment.add_filter("string", |value: &Value| match as_text(value) {
        Some(text) => Value::from(text),
        None => Value::from(value.to_string()),
    });
    for (name, filter) in [
        ("map", Value::from_function(filters::map)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
    ] {
        environment.add_filter(name, of_something(filter));
    }
    environment.add_test("none", |value: &Value| value.is_none() || is_nothing(value));
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | String | Seq | Map | Iterable)
    });
}

/// `None` where a loop over it is refused, as Python does, and not passed by.
pub(super) fn nothing() -> Value {
    Value::from_object(Nothing)
}

/// Whether it is such a `None`.
pub(super) fn is_nothing(value: &Value) -> bool {
    value.downcast_object_ref::<Nothing>().is_some()
}

/// A filter that makes an empty list of such a `None`, as these do in Jinja.
fn of_something(
    filter: Value,
) -> impl Fn(&State<'_, '_>, Value, Rest<Value>) -> Result<Value, Error> {
    move |state, value, others| {
        let value = if is_nothing(&value) { Value::from_iter::<[Value; 0]>([]) } else { value };
        let arguments: Vec<Value> = [value].into_iter().chain(others.0).collect();
        filter.call(state, &arguments)
    }
}

#[derive(Debug)]
struct Nothing;

impl Object for Nothing {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("None")
    }
}

fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match as_text(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => escape_formatter(out, state, value),
    }
}

/// A list or a map as `str` writes it; `None` of anything else.
fn as_text(value: &Value) -> Option<String> {
    let is_container = matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
    is_container.then(|| {
        let mut text = String::new();
        write_repr(&mut text, value);
        text
    })
}

fn write_repr(out: &mut String, value: &Value) {
    let written = match value.kind() {
        ValueKind::String => {
            write_quoted(out, value.as_str().unwrap_or_default());
            Ok(())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item);
            }
            out.push(']');
            Ok(())
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
            Ok(())
        }
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        _ => write!(out, "{value}"),
    };
    written.expect("a string takes what is written");
}

/// Whether Python writes a character by its code: controls, white space but for the plain one, and what has no shape.
fn is_unprintable(character: char) -> bool {
    let has_no_shape = matches!(character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}');
    has_no_shape || character.is_control() || (character.is_whitespace() && character != ' ')
}

/// A string as `repr` writes it: in single quotes, unless only these are in it.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_unprintable(character) => {
                let code = u32::from(character);
                let written = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
                written.expect("a string takes what is written");
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use minijinja::context;
    use serde_json::json;

    use super::*;

    fn render(source: &str) -> Result<String, Error> {
        let mut environment = Environment::new();
        like_python(&mut environment);
        let value = json!({"a": [1, 2.5, true, null, "it's"], "é\n": {"\"": "'\""}, "e": []});
        let value = Value::from_serialize(value);
        environment.render_str(source, context! { value, tools => nothing() })
    }

    /// Expected texts are those of Python 3's `str`.
    #[test]
    fn lists_and_maps_are_written_as_python_writes_them() {
        let expected = r#"{'a': [1, 2.5, True, None, "it's"], 'é\n': {'"': '\'"'}, 'e': []}"#;
        for source in ["{{ value }}", "{{ value|string }}", "{{ 'x' ~ value|string }}"] {
            let found = render(source).unwrap();
            assert_eq!(found.trim_start_matches('x'), expected, "{source}");
        }
        assert_eq!(render("{{ value.a[4] }}{{ value.a[1] }}").unwrap(), "it's2.5");
        assert_eq!(render(r#"{{ ["a\\b", "\u0007"] }}"#).unwrap(), r"['a\\b', '\x07']");
        assert_eq!(render("{{ ['\u{a0}\u{2028}é 😀'] }}").unwrap(), r"['\xa0\u2028é 😀']");
    }

    #[test]
    fn no_tools_are_none_and_nothing_to_go_through() {
        for (source, expected) in [
            ("{{ tools is none }}{{ tools is not none }}", "TrueFalse"),
            ("{{ tools is defined }}{{ tools is iterable }}", "TrueFalse"),
            (
                "{{ tools is string }}{{ tools is mapping }}{{ tools is sequence }}",
                "FalseFalseFalse",
            ),
            ("{% if tools %}a{% endif %}{{ tools }}", "None"),
            ("{{ tools|selectattr('type')|list|length }}{{ tools|map('upper')|list }}", "0[]"),
            ("{{ none is none }}{{ none is iterable }}{{ value is none }}", "TrueFalseFalse"),
            ("{{ missing is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}", "TrueTrueFalse"),
        ] {
            assert_eq!(render(source).unwrap(), expected, "{source}");
        }
        for source in
            ["{% for tool in tools %}{% endfor %}", "{{ tools|length }}", "{{ tools.a.b }}"]
        {
            assert!(render(source).is_err(), "{source}");
        }
    }
}
