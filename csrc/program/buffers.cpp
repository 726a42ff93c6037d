#include "program/buffers.h"

#include <string>

#include "program/require.h"

namespace dragoman {

int Buffers::add(long width, int over) {
  require_range(width, 1 << 24, "width");
  auto buffer = std::make_unique<Buffer>();
  buffer->width = width;
  if (over >= 0) {
    const Buffer& other = at(over);
    require(width <= other.width, "a buffer is wider than the one whose memory it is to have");
    buffer->stride = other.stride;
    buffer->memory = other.memory;
  } else {
    buffer->stride = ((width + 15) / 16 | 1) * 16;  // a power of two would put a tile's rows into the same cache sets
    const std::size_t bytes =
        static_cast<std::size_t>(rows_) * static_cast<std::size_t>(buffer->stride) * sizeof(float);
    buffer->memory = std::make_shared<const AnonymousMemory>(bytes);
  }
  buffers_.push_back(std::move(buffer));
  return static_cast<int>(buffers_.size()) - 1;
}

const Buffer& Buffers::at(int x) const {
  require(x >= 0 && x < static_cast<int>(buffers_.size()), "there is no buffer " + std::to_string(x));
  return *buffers_[x];
}

Buffer& Buffers::read(int x) {
  at(x);
  Buffer& buffer = *buffers_[x];
  require(buffer.rows != Rows::unwritten, "buffer " + std::to_string(x) + " is read before it is written");
  return buffer;
}

Buffer& Buffers::write(int x, Rows rows) {
  const Buffer& written = at(x);
  for (const auto& buffer : buffers_) {
    if (buffer->memory != written.memory) continue;
    if (buffer->rows != Rows::unwritten && buffer->rows != rows) mix_rows_ = true;
    buffer->rows = Rows::unwritten;
  }
  buffers_[x]->rows = rows;
  return *buffers_[x];
}

void Buffers::prefault() const {
  for (const auto& buffer : buffers_) {
    if (buffer->rows == Rows::tokens) buffer->memory->touch(buffer->memory->size());
  }
}

}  // namespace dragoman
