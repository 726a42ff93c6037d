// The green list of a watermark: which tokens it favours behind another one, from Philox4x64-10 (sampling/philox.h,
// here once for each instruction set).
namespace dragoman::DRAGOMAN_ISA {
namespace {

// Philox4x64-10 of the counters (first … first + 7, previous, 0, 0) and key (key, 1): four numbers of each.
DRAGOMAN_INLINE void green_numbers(std::uint64_t first, std::uint64_t previous, std::uint64_t key,
                                   std::uint64_t* numbers) {
  constexpr std::uint64_t kFactors[] = {0xd2e7470ee14c6c93u, 0xca5a826395121157u};
  constexpr std::uint64_t kSteps[] = {0x9e3779b97f4a7c15u, 0xbb67ae8584caa73bu};
  std::uint64_t keys[2] = {key, 1};
  const auto next_keys = [&] { keys[0] += kSteps[0], keys[1] += kSteps[1]; };
  Longs counter[4], high[2];
  // Of the first two rounds, half of the products are the same for all counters, or of 0.
  counter[3] = multiply_wide(count_from(first), kFactors[0], high[0]);
  counter[2] = high[0] ^ broadcast_long(keys[1]);
  const auto same = static_cast<unsigned __int128>(previous ^ keys[0]) * kFactors[0];
  next_keys();
  counter[1] = multiply_wide(counter[2], kFactors[1], high[1]);
  counter[0] = high[1] ^ broadcast_long(keys[0]);
  counter[2] = counter[3] ^ broadcast_long(static_cast<std::uint64_t>(same >> 64) ^ keys[1]);
  counter[3] = broadcast_long(static_cast<std::uint64_t>(same));
  for (int round = 2; round < 10; ++round) {
    next_keys();
    const Longs a = multiply_wide(counter[0], kFactors[0], high[0]);
    const Longs b = multiply_wide(counter[2], kFactors[1], high[1]);
    counter[0] = high[1] ^ counter[1] ^ broadcast_long(keys[0]);
    counter[1] = b;
    counter[2] = high[0] ^ counter[3] ^ broadcast_long(keys[1]);
    counter[3] = a;
  }
  store_interleaved(numbers, counter);
}

void add_to_green(float* x, long first, long count, const GreenList& green, float delta) {
  constexpr long kTokens = 64;  // of eight counters: two of each number, the low half first
  if (green.limit == 0) return;
  const auto most = static_cast<std::uint32_t>(green.limit - 1);
  for (long begin = 0; begin < count; begin += kTokens) {
    std::uint64_t numbers[kTokens / 2];
    green_numbers(static_cast<std::uint64_t>((first + begin) / 8), green.previous, green.key, numbers);
    std::uint32_t words[kTokens];
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    std::memcpy(words, numbers, sizeof words);
    for_each_vector(count - begin < kTokens ? count - begin : kTokens, [&](long i, long n) {
      const Vec logits = load_up_to(x + begin + i, n);
      store_up_to(x + begin + i, add_where_at_most(logits, words + i, most, broadcast(delta)), n);
    });
  }
}

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
