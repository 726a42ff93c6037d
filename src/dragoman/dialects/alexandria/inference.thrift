// What Alexandria's Thrift endpoints and binary WebSocket frames carry: TBinaryProtocol, bare structs without an envelope.

namespace java com.inference
namespace js inference
namespace py inference

// Shared ----------------------------------------------------------------------

struct SinglePrompt {
  1: required string request_id,
  2: optional string prompt,
}

struct GenerationConfig {
  1: optional i32 num_beams,
  2: optional bool do_sample,
  3: optional double temperature,
  4: optional double top_p,
  5: optional i32 top_k,
  6: optional i32 max_new_tokens,
  7: optional double repetition_penalty,
  8: optional double length_penalty,
}

// POST /api/thrift/generate-one: the answer is one ApiSinglePromptStream behind the other --------------------------

struct ApiSinglePromptRequest {
  1: required string request_id,
  2: optional string prompt,
  3: optional bool stream_response,
  4: optional bool only_new_tokens,
  5: optional GenerationConfig generation_config,
}

struct ApiSinglePromptStream {
  1: string text,
}

// POST /api/thrift/generate-batch ----------------------------------------------

struct ApiBatchPromptRequest {
  1: list<SinglePrompt> prompts,
  2: optional bool only_new_tokens,
  3: optional GenerationConfig generation_config,
}

struct ApiBatchPrompt {
  1: string request_id,
  2: optional string prompt,
  3: string response,
}

struct ApiBatchPromptResponse {
  1: list<ApiBatchPrompt> responses,
}

// Binary frames of the WebSocket -----------------------------------------------

struct WsInferenceRequest {
  1: list<SinglePrompt> prompts,
  2: optional bool stream_response,
  3: optional bool only_new_tokens,
  4: optional GenerationConfig generation_config,
}

struct WsInferenceAcceptedEvent {
  1: string request_id,
}

struct WsInferenceStartedEvent {
  1: string request_id,
}

struct WsInferenceInitializedEvent {
  1: string request_id,
  3: string text,
}

struct WsInferenceProgressEvent {
  1: string request_id,
  3: string text,
}

struct WsInferenceCompletionEvent {
  1: string request_id,
  3: string text,
  4: bool is_eos,
  5: i32 new_tokens_count,
  6: double execution_time,
}

struct WsInferenceErrorEvent {
  1: string request_id,
  3: string error,
}

union WsInferenceEvent {
  1: WsInferenceAcceptedEvent acceptedEvent,
  2: WsInferenceStartedEvent startedEvent,
  3: WsInferenceInitializedEvent initializedEvent,
  4: WsInferenceProgressEvent progressEvent,
  5: WsInferenceCompletionEvent completionEvent,
  6: WsInferenceErrorEvent errorEvent,
  7: WsInferenceErrorEvent wsErrorEvent, // of the whole message: without a request_id
}

struct WsInferenceResponse {
  1: list<WsInferenceEvent> events,
}
