//! What a stranger may send to `serve`: requests that are too large, too deep, too slow or not what they seem.
//! None of them ends the server, fills its memory or holds up anybody else.

mod answers;
mod door;
mod grammar;
mod text;
