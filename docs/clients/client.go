// client.go
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

var web = http.Client{Timeout: 10 * time.Second}

func call(method, path string, body any, key string) (int, map[string]any, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequest(method, os.Getenv("QUEUE_URL")+"/"+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("QUEUE_TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := web.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	var found map[string]any
	err = json.NewDecoder(response.Body).Decode(&found)
	return response.StatusCode, found, err
}

func must(status int, found map[string]any, err error) (int, map[string]any) {
	if err != nil {
		panic(err)
	}
	return status, found
}

func main() {
	order := map[string]any{"task": "orders.tasks.close_order", "args": []int{42}, "delay": "30m"}
	status, job := must(call("POST", "jobs", order, fmt.Sprintf("close-order-42-%d", time.Now().UnixNano())))
	fmt.Println(status, job["id"])
	place := "jobs/" + job["id"].(string)
	_, found := must(call("GET", place, nil, ""))
	fmt.Println(found["state"])
	_, found = must(call("POST", place+"/cancel", map[string]any{"reason": "paid"}, ""))
	fmt.Println(found["change"])
}
