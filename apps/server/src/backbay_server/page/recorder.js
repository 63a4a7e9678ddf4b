// Sounds: the microphone's, and those of files that the server does not read, as WAV files of one channel.

const RATE = 16000; // samples a second, as models hear

export const canRecord = () => Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

export class Recorder {
  // `changed` is called when a recording begins or ends, `take` with each recording.
  constructor(take, changed) {
    this.take = take;
    this.changed = changed;
    this.running = null;
  }

  async toggle() {
    if (this.running) return this.running.stop();
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const recorder = this.running = new MediaRecorder(stream), parts = [];
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop(); // the browser shows that nobody listens
      this.running = null;
      this.changed();
      this.take(new File(parts, "recording", { type: recorder.mimeType }));
    };
    recorder.start();
    this.changed();
  }
}

export async function asWav(file) {
  const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  const channels = Array.from({ length: sound.numberOfChannels }, (_, number) => sound.getChannelData(number));
  const data = new DataView(new ArrayBuffer(44 + 2 * sound.length));
  const text = (at, word) => [...word].forEach((letter, n) => data.setUint8(at + n, letter.charCodeAt(0)));
  const numbers = (at, bytes, ...values) => values.forEach((value, n) => data[`setUint${8 * bytes}`](at + n * bytes, value, true));
  text(0, "RIFF");
  numbers(4, 4, 36 + 2 * sound.length);
  text(8, "WAVEfmt ");
  numbers(16, 4, 16);
  numbers(20, 2, 1, 1); // whole numbers, one channel
  numbers(24, 4, RATE, 2 * RATE);
  numbers(32, 2, 2, 16);
  text(36, "data");
  numbers(40, 4, 2 * sound.length);
  for (let n = 0; n < sound.length; n++) {
    const mean = channels.reduce((sum, samples) => sum + samples[n], 0) / channels.length;
    data.setInt16(44 + 2 * n, Math.round(32767 * Math.max(-1, Math.min(1, mean))), true);
  }
  return new Blob([data], { type: "audio/wav" });
}
