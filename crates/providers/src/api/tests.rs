//! Tests that hold for every vendor's API, and the harness for the tests of one vendor.

pub(crate) mod conversations;
pub(crate) mod faults;
pub(crate) mod harness;
pub(crate) mod replay;

/// The tests that hold for every vendor, for one of them.
macro_rules! vendor_tests {
    ($vendor:ty) => {
        $crate::api::tests::vendor_tests! { $vendor:
            conversations::a_turn_that_failed_takes_its_message_back,
            conversations::a_conversation_is_branched_and_stays_as_it_is,
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
