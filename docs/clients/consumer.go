// consumer.go
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

type message struct {
	ID     string          `json:"id"`
	Fence  string          `json:"fence"`
	Body   json.RawMessage `json:"body,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

var web = http.Client{Timeout: 70 * time.Second}

func call(verb string, body any) []message {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	for {
		request, err := http.NewRequest("POST", os.Getenv("QUEUE_URL")+"/queues/parcels/"+verb, bytes.NewReader(raw))
		if err != nil {
			panic(err)
		}
		request.Header.Set("Authorization", "Bearer "+os.Getenv("QUEUE_TOKEN"))
		request.Header.Set("Content-Type", "application/json")
		response, err := web.Do(request)
		if err != nil { // no response; it is safe to send the same request again
			time.Sleep(time.Second)
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		var found struct{ Messages []message }
		switch {
		case err != nil:
			time.Sleep(time.Second)
		case response.StatusCode == 200:
			if err := json.Unmarshal(text, &found); err != nil {
				panic(err)
			}
			return found.Messages
		case response.StatusCode == 429 || response.StatusCode >= 502:
			seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
			time.Sleep(time.Duration(max(seconds, 1)) * time.Second)
		default:
			panic(string(text))
		}
	}
}

func pack(body json.RawMessage) error {
	var parcel struct{ Order int }
	if err := json.Unmarshal(body, &parcel); err != nil {
		return err
	}
	if parcel.Order == 0 {
		return errors.New("a parcel without an order")
	}
	fmt.Println("packed", parcel.Order)
	return nil
}

func main() {
	for {
		var packed, failed []message
		for _, received := range call("pull", map[string]any{"n": 10, "wait": 60, "lease": "1m"}) {
			if err := pack(received.Body); err != nil {
				failed = append(failed, message{ID: received.ID, Fence: received.Fence, Reason: err.Error()})
			} else {
				packed = append(packed, message{ID: received.ID, Fence: received.Fence})
			}
		}
		if len(packed) > 0 {
			call("ack", map[string]any{"messages": packed})
		}
		if len(failed) > 0 {
			call("retry", map[string]any{"messages": failed})
		}
	}
}
