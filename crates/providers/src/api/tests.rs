//! Tests that hold for every vendor's API, the harness for the tests of one vendor, and servers of raw bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub(crate) mod conversations;
pub(crate) mod faults;
pub(crate) mod harness;
pub(crate) mod replay;

/// The tests that hold for every vendor, for one of them.
macro_rules! vendor_tests {
    ($vendor:ty) => {
        $crate::api::tests::vendor_tests! { $vendor:
            conversations::a_turn_that_failed_takes_its_message_back,
            conversations::a_conversation_whose_first_turn_failed_can_continue,
            conversations::a_cancelled_turn_stores_its_text_and_the_conversation_continues,
            conversations::a_turn_whose_process_died_leaves_its_message,
            conversations::a_damaged_conversation_is_refused_without_a_request,
            conversations::a_full_store_loses_no_output,
            faults::streams_that_break,
            faults::servers_that_do_not_speak_http,
            faults::responses_that_are_not_streams,
            faults::a_deadline_ends_the_turn,
            faults::invalid_inputs_are_refused_before_anything_is_stored,
            faults::a_call_that_is_cancelled_before_it_begins_sends_no_request,
            faults::no_output_holds_the_key,
            faults::an_address_with_a_password_is_not_shown,
            replay::recorded_responses_give_their_golden_events,
        }
    };
    ($vendor:ty: $($module:ident::$test:ident,)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                $crate::api::tests::$module::$test::<$vendor>().await;
            }
        )+
    };
}

pub(crate) use vendor_tests;

/// A server on loopback that reads the head and body of one request, and then serves as given; its address.
pub(crate) fn raw(serve: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        drop(listener);
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !whole(&seen) {
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => seen.extend_from_slice(&buffer[..length]),
                _ => return,
            }
        }
        serve(stream);
    });
    address
}

fn whole(seen: &[u8]) -> bool {
    let text = String::from_utf8_lossy(seen).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

/// The head of a stream that ends when the connection does.
pub(crate) const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
/// Writes, as far as the client still listens.
pub(crate) fn say(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.flush();
}

/// Holds the connection open until the client closes it.
pub(crate) fn hold(mut stream: TcpStream) {
    let mut buffer = [0; 64];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}
