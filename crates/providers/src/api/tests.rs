//! Tests that hold for every vendor's API, and the harness for the tests of one vendor.

pub(crate) mod conversations;
pub(crate) mod faults;
pub(crate) mod harness;
pub(crate) mod replay;
pub(crate) mod tools;

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
            tools::calls_of_one_message_are_answered_in_their_order_and_gone_on_with,
            tools::what_nobody_allows_is_denied_and_told,
            tools::the_limit_of_model_turns_leaves_no_call_open,
            tools::a_failure_after_a_tool_takes_nothing_back,
            tools::a_call_where_nothing_was_offered_is_a_fault,
            tools::a_real_server_is_called_and_gone_with_the_turn,
            tools::a_turn_cancelled_within_a_tool_leaves_an_answer_and_no_process,
            tools::a_turn_whose_process_died_within_a_tool_does_not_run_it_again,
            tools::a_server_that_does_not_start_keeps_the_model_from_being_asked,
            tools::a_deadline_ends_a_tool_too,
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
