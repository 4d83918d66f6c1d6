//! HTTP/1 and HTTP/2 connections of both servers, from their accept to their end.
//!
//! [`serve`] bounds what a client can hold: the number of connections, the time of a request's head,
//! the time that an answer stays unread. A drain ends when every request is answered, whatever else
//! clients do. Knows nothing of routes.

mod answer;
mod limits;
mod moving;
mod serve;
mod share;
mod traffic;

pub use limits::Limits;
pub use serve::{Accept, serve};
pub use share::Share;
