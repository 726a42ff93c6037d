// A routed feed-forward network, or mixture of experts: a router chooses a few experts for each row.
//
// Rows are grouped by expert, so that a step reads the weights of every expert it uses once. The result of a row is the
// weighted sum of its experts' results in ascending order of their numbers: it depends on the row alone.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm/linear.h"
#include "layers/transform.h"

namespace dragoman {

constexpr long kMostExperts = 1024;

// An expert that every row passes in addition to the chosen ones: none, with weight 1, or with the sigmoid of a logit.
enum class SharedExpert : std::uint8_t { none, added, gated };

// How a logit becomes the score of an expert.
enum class Scores : std::uint8_t {
  softmax,
  sigmoid,
  // Two experts, the second chosen and weighed without the first; each has its share of the softmax over those whose
  // logits are near the largest (Liu et al. 2024, GRIN, https://arxiv.org/abs/2409.12136).
  sparse_mixer,
};

// How logits become a choice. The logits of a row are those of all selectable experts, then that of the shared one if
// it is gated.
struct Routing {
  long experts = 0;     // selectable experts: at most kMostExperts
  long identities = 0;  // the last of them, which have no matrices: what goes in comes out
  long active = 0;      // chosen for each row: the largest scores, the lower number where they are equal
  bool over_all =
      false;  // weights are the scores over all experts; else they are divided by the sum of the chosen ones
  SharedExpert shared = SharedExpert::none;
  Scores scores = Scores::softmax;
  const float* bias = nullptr;  // [experts]: added to the scores for the choice, not for the weights
  // Experts form `groups` of neighbours, of which only the best are chosen from: those of the largest sums of their
  // `group_top` best scores.
  long groups = 1, active_groups = 1, group_top = 1;
  float least = 0.0f;             // of the sum that the weights are divided by
  float factor = 1.0f;            // of the weights of the chosen experts
  float margin = 0.0f;            // sparse_mixer: relative distance up to which a logit is near the largest
  bool scale_inputs = false;      // the weights multiply what goes into the experts, not what comes out
  const float* scales = nullptr;  // [experts]: factors of the weights, after everything else

  // Whether the largest logits are chosen, and weighed by a softmax.
  bool is_plain() const {
    return scores == Scores::softmax && bias == nullptr && groups == 1 && factor == 1.0f && least == 0.0f;
  }
};

struct ExpertKernels {
  // For each row its experts in ascending order, chosen[r · active + j], and their weights,
  // weights[r · (active + 1) + j]; after these the weight of the shared expert, if there is one.
  void (*route)(const Routing& routing, const float* logits, long ldlogits, long rows, std::int32_t* chosen,
                float* weights);

  // One row: out (+)= factor · Σⱼ weights[j] · parts[j][:width], summed in the order of j.
  void (*combine)(const float* const* parts, const float* weights, long count, long width, float factor,
                  bool accumulate, float* out);
};

// out · act(in · x), with `gated` out · (act(gate · x) · (up · x)), gate above up in one matrix.
struct Expert {
  Matrix in;   // [hidden or 2 · hidden, width]
  Matrix out;  // [width, hidden]
  const float* in_bias = nullptr;
  const float* out_bias = nullptr;
};

struct Experts {
  Routing routing;
  Matrix router;  // [experts (+ 1 for a gated shared one), width]
  const float* router_bias = nullptr;
  std::vector<Expert> experts;  // the shared one last
  bool gated = true;
  Activation activation = Activation::silu;
  float factor = 1.0f;  // of the result
};

// Memory shared by one network after the other.
struct ExpertsScratch {
  // One expert and its rows.
  struct Part {
    const Expert* expert;
    long first, rows;  // among all pairs of expert and row
    Activations input, inner;
    float* wide;  // results of `in` for the rows, and their activation
    long ldwide;
  };

  Scratch prepare, logits, gathered, scaled, wide, inner, results;
  Scratch prepared[2 * kPrecisions];  // the rows in the form of each kind of matrix
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
  std::vector<Part> parts;
  std::vector<long> block_ends;       // of the parts, in one row of all parts' blocks
  std::vector<long> next;             // by expert: the pair its next row gets
  std::vector<std::int32_t> rows;     // by pair
  std::vector<std::int32_t> part_of;  // by pair
  std::vector<float> input_factors;   // by pair, where the weights multiply the inputs
  std::vector<long> pair_of;          // by row and rank
};

// out[r, :width] (+)= factor · Σ weight · expert(x[r]), with weights by routed[r]. Throws std::bad_alloc.
void run_experts(const Experts& e, const float* x, long ldx, const float* routed, long ldrouted, long rows, float* out,
                 long ldout, bool accumulate, ExpertsScratch& scratch);

}  // namespace dragoman
