//! Tests that hold for every vendor's API, and the harness for the tests of one vendor.

pub(crate) mod conversations;
pub(crate) mod faults;
pub(crate) mod keys;
pub(crate) mod replay;
pub(crate) mod world;

/// The tests of a vendor that are the functions of these names.
macro_rules! tests {
    ($api:ty: $($module:ident::{$($test:ident),+ $(,)?},)+) => {
        $($(
            #[tokio::test]
            async fn $test() {
                $crate::api::tests::$module::$test::<$api>().await;
            }
        )+)+
    };
}

/// All of them, for each vendor.
macro_rules! vendors {
    ($($vendor:ident),+) => {
        $(mod $vendor {
            tests! { crate::$vendor::tests::TestApi:
                conversations::{
                    a_turn_that_failed_takes_its_message_back,
                    a_conversation_whose_first_turn_failed_can_continue,
                    a_cancelled_turn_stores_its_text_and_the_conversation_continues,
                    a_turn_whose_process_died_leaves_its_message,
                    a_damaged_conversation_is_refused_without_a_request,
                    a_full_store_loses_no_output,
                },
                faults::{
                    streams_that_break,
                    servers_that_do_not_speak_http,
                    responses_that_are_not_streams,
                    a_deadline_ends_the_turn,
                    invalid_inputs_are_refused_before_anything_is_stored,
                    a_call_that_is_cancelled_before_it_begins_sends_no_request,
                },
                keys::{no_output_holds_the_key, an_address_with_a_password_is_not_shown},
            }
        })+
    };
}

vendors!(anthropic, openai);
