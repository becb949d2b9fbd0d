//! The `tojson` filter of chat templates: JSON exactly as Python's `json.dumps` spells it.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

use super::{guard, python};

/// Longest indentation that a template can ask for; a larger one is a mistake or an attack.
const MAX_INDENT: usize = 64;

/// Writes `value` as JSON with Python's separators and nothing escaped for HTML.
///
/// Takes `indent`, `separators`, `sort_keys` and `ensure_ascii` as transformers' filter does.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no JSON form"));
    }
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;

    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("indent is over {MAX_INDENT}"),
        ));
    }
    let (item_separator, key_separator) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "separators must be a pair"));
        }
    };
    let style = PythonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        depth: 0,
        has_items: false,
    };
    if python::is_nothing(value) {
        return Ok("null".to_owned());
    }
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, style);
    let written = if sort_keys.unwrap_or(false) {
        serde_json::to_value(value).and_then(|mut tree| {
            tree.sort_all_objects();
            tree.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "value has no JSON form").with_source(error)
    })?;
    Ok(String::from_utf8(out).expect("the serializer copies strings and writes ASCII around them"))
}

/// Separators and line breaks as `json.dumps` places them.
struct PythonStyle<'a> {
    /// Spaces per level; `None` keeps everything on one line.
    indent: Option<usize>,
    item_separator: &'a str,
    key_separator: &'a str,
    ensure_ascii: bool,
    depth: usize,
    /// Whether the innermost list or object that ended or goes on has anything in it.
    has_items: bool,
}

impl PythonStyle<'_> {
    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_items {
            self.new_line(out)?;
        }
        out.write_all(bracket)
    }

    fn next_item<W: ?Sized + io::Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.new_line(out)
    }

    fn new_line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else {
            return Ok(());
        };
        write!(out, "\n{:width$}", "", width = indent * self.depth)
    }
}

impl Formatter for PythonStyle<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next_item(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next_item(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key_separator.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ensure_ascii {
            return out.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            // Masks stand for characters of ASCII that begin control tokens.
            if matches!(character, ' '..='~') || guard::MASKS.contains(&character) {
                out.write_all(character.encode_utf8(&mut [0; 4]).as_bytes())?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    fn dumps(expression: &str) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::tojson);
        let value: serde_json::Value = serde_json::from_str(
            r#"{"b": [1, 2.0, true, null, {}], "a": {"é<'&'>": "\"😀\n\u007f"}, "e": []}"#,
        )
        .expect("valid");
        environment.render_str(&format!("{{{{ {expression} }}}}"), context! { value })
    }

    /// Expected values are those of Python's `json.dumps(value, ensure_ascii=False, ...)`.
    #[test]
    fn writes_json_as_python_does() {
        assert_eq!(
            dumps("value|tojson").expect("renders"),
            "{\"b\": [1, 2.0, true, null, {}], \"a\": {\"é<'&'>\": \"\\\"😀\\n\u{7f}\"}, \"e\": []}"
        );
        assert_eq!(
            dumps("value|tojson(indent=2)").expect("renders"),
            "{\n  \"b\": [\n    1,\n    2.0,\n    true,\n    null,\n    {}\n  ],\n  \"a\": {\n    \
             \"é<'&'>\": \"\\\"😀\\n\u{7f}\"\n  },\n  \"e\": []\n}"
        );
        assert_eq!(
            dumps("value|tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true)")
                .expect("renders"),
            r#"{"a":{"\u00e9<'&'>":"\"\ud83d\ude00\n\u007f"},"b":[1,2.0,true,null,{}],"e":[]}"#
        );
        assert_eq!(dumps("[]|tojson(indent=4)").expect("renders"), "[]");
        assert_eq!(dumps("[[1]]|tojson(indent=0)").expect("renders"), "[\n[\n1\n]\n]");
        assert_eq!(dumps("'x'|tojson").expect("renders"), "\"x\"");
    }

    #[test]
    fn refuses_what_has_no_json_form() {
        for expression in [
            "missing|tojson",
            "value|tojson(indent=65)",
            "value|tojson(separators=[','])",
            "value|tojson(colour=1)",
        ] {
            assert!(dumps(expression).is_err(), "{expression}");
        }
    }
}
