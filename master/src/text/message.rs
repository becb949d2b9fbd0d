//! Making messages.
use super::Message;

impl Message {
    /// A message by `role` saying `content`.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}
